# The core knows ranks only through unshard/comm.h: nothing in src and include includes MPI's header, include/unshard/mpi apart.
file(GLOB_RECURSE files ${SOURCE}/src/* ${SOURCE}/include/*)
list(FILTER files EXCLUDE REGEX "/include/unshard/mpi/")
foreach(file IN LISTS files)
  file(STRINGS ${file} lines REGEX "#[ \t]*include[ \t]*[<\"](mpi\\.h|unshard/mpi/)")
  if(lines)
    message(SEND_ERROR "${file}: ${lines}")
  endif()
endforeach()
