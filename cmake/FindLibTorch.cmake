# Finds LibTorch, for arithmetic on the CPU only: the libraries torch_cpu and c10 by themselves, so that a Python wheel built for CUDA asks for no
# CUDA toolkit (its TorchConfig.cmake would).
#
# Looked for in this order; the first that is complete, new enough and of the C++11 string ABI is taken, others are passed over with one line:
#   1. Torch_DIR        a variable or environment variable: the folder of TorchConfig.cmake, or any folder inside an installation
#   2. the distribution  libtorch-dev
#   3. Python           the torch package of the active Python, then of .venv in the source folder
#
# Sets LibTorch_FOUND, LibTorch_VERSION, LibTorch_LIBRARY_DIR and the targets LibTorch::c10, LibTorch::torch_cpu.

# prefix -> <out>: "" if the installation can be used, else why not; <out>_VERSION, _INCLUDE, _CPU, _C10
function(_libtorch_examine out prefix)
  find_path(_include ATen/ATen.h PATHS ${prefix}/include NO_DEFAULT_PATH NO_CACHE)
  find_library(_cpu torch_cpu PATHS ${prefix}/lib ${prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE} ${prefix}/lib64 NO_DEFAULT_PATH NO_CACHE)
  find_library(_c10 c10 PATHS ${prefix}/lib ${prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE} ${prefix}/lib64 NO_DEFAULT_PATH NO_CACHE)
  if(NOT _include OR NOT _cpu OR NOT _c10)
    set(${out} "it lacks ATen/ATen.h, libtorch_cpu or libc10" PARENT_SCOPE)
    return()
  endif()
  set(version "")
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${_include}/${header} AND NOT version)
      file(STRINGS ${_include}/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
      string(REPLACE ";" "." version "${version}")
    endif()
  endforeach()
  # A library of the old string ABI exports the same functions, but none that takes a std::__cxx11::string.
  file(STRINGS ${_c10} new_abi REGEX "torchCheckFail.*St7__cxx11" LIMIT_COUNT 1)
  if(NOT version)
    set(${out} "its version.h has no version" PARENT_SCOPE)
  elseif(LibTorch_FIND_VERSION AND version VERSION_LESS LibTorch_FIND_VERSION)
    set(${out} "it is ${version}, at least ${LibTorch_FIND_VERSION} is needed" PARENT_SCOPE)
  elseif(NOT new_abi)
    set(${out} "it was built with the old string ABI (_GLIBCXX_USE_CXX11_ABI=0)" PARENT_SCOPE)
  else()
    set(${out} "" PARENT_SCOPE)
    set(${out}_VERSION ${version} PARENT_SCOPE)
    set(${out}_INCLUDE ${_include} PARENT_SCOPE)
    set(${out}_CPU ${_cpu} PARENT_SCOPE)
    set(${out}_C10 ${_c10} PARENT_SCOPE)
  endif()
endfunction()

# All candidates, as prefixes with include/ and lib/ in them.
function(_libtorch_candidates out)
  set(prefixes "")
  foreach(folder "${Torch_DIR}" "$ENV{Torch_DIR}")
    while(folder AND NOT EXISTS "${folder}/include/ATen/ATen.h")
      get_filename_component(parent "${folder}" DIRECTORY)
      if(parent STREQUAL folder)
        set(parent "")
      endif()
      set(folder "${parent}")
    endwhile()
    if(folder)
      list(APPEND prefixes "${folder}")
    endif()
  endforeach()
  foreach(prefix /usr /usr/local)
    if(EXISTS ${prefix}/include/ATen/ATen.h)
      list(APPEND prefixes ${prefix})
    endif()
  endforeach()
  foreach(python "$ENV{VIRTUAL_ENV}/bin/python3" python3 "${CMAKE_SOURCE_DIR}/.venv/bin/python3")
    execute_process(
      COMMAND "${python}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed AND folder)
      list(APPEND prefixes "${folder}")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES prefixes)
  set(${out} "${prefixes}" PARENT_SCOPE)
endfunction()

_libtorch_candidates(_libtorch_prefixes)
foreach(_prefix IN LISTS _libtorch_prefixes)
  _libtorch_examine(_libtorch "${_prefix}")
  if(NOT _libtorch)
    set(LibTorch_VERSION ${_libtorch_VERSION})
    set(LibTorch_INCLUDE_DIR ${_libtorch_INCLUDE})
    set(LibTorch_LIBRARY ${_libtorch_CPU})
    set(LibTorch_C10_LIBRARY ${_libtorch_C10})
    get_filename_component(LibTorch_LIBRARY_DIR ${_libtorch_CPU} DIRECTORY)
    break()
  endif()
  message(NOTICE "LibTorch in ${_prefix} is passed over: ${_libtorch}")
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "Install libtorch-dev (Debian 13) or a Python torch, or set Torch_DIR (./bootstrap deps does one of the first two).")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${LibTorch_INCLUDE_DIR})
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include" INTERFACE_LINK_LIBRARIES LibTorch::c10)
endif()
