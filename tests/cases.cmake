# One ctest entry per case of the groups that work today, and the merged folders loaded in transformers. Included by tests/CMakeLists.txt.
file(GLOB cases CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}/cases cases/fsdp/*/case.json cases/hf/*/case.json cases/megatron/*/case.json
  cases/lora/*/case.json cases/hostile/*/case.json  cases/dcp/*/case.json cases/accelerate/*/case.json)
set(runner ${UNSHARD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/cases/run_cases.py --unshard $<TARGET_FILE:unshard> --mpirun "${MPIEXEC_EXECUTABLE} --oversubscribe" --timeout 120)

# unshard_case(<entry> <group>/<case> <arguments of the runner>…)
function(unshard_case entry case)
  string(REPLACE "/" ";" parts ${case})
  list(GET parts 0 group)
  list(GET parts 1 name)
  add_test(NAME ${prefix}${entry} COMMAND ${runner} --group ${group} --case ${name} ${ARGN})
  set_tests_properties(${prefix}${entry} PROPERTIES TIMEOUT 600 ENVIRONMENT "${mpi_environment}" PASS_REGULAR_EXPRESSION "1 passed, 0 failed")
endfunction()

set(number 0)
foreach(file IN LISTS cases)
  get_filename_component(case ${file} DIRECTORY)
  string(REPLACE "/" "." name ${case})
  if(NOT UNSHARD_SANITIZE)
    unshard_case(cases.${name} ${case})
    continue()
  endif()
  # Sanitizers: every case as a plain program, with leaks looked for; one in three with two ranks as well.
  unshard_case(cases.${name} ${case} --np 1)
  set_tests_properties(${prefix}cases.${name} PROPERTIES ENVIRONMENT "${plain_environment}")
  math(EXPR number "(${number} + 1) % 3")
  if(number EQUAL 0)
    unshard_case(cases.${name}.np2 ${case} --np 2)
  endif()
endforeach()

if(NOT UNSHARD_SANITIZE)
  add_test(NAME models.load_in_transformers
    COMMAND ${UNSHARD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/models/load_in_transformers.py --unshard $<TARGET_FILE:unshard> --cases ${CMAKE_CURRENT_SOURCE_DIR}/cases)
  add_test(NAME models.round_trip COMMAND ${UNSHARD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/models/round_trip.py --unshard $<TARGET_FILE:unshard>)
  set_tests_properties(models.load_in_transformers models.round_trip PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
  add_test(NAME models.lora_against_peft
    COMMAND ${UNSHARD_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/models/lora_against_peft.py --unshard $<TARGET_FILE:unshard>)
  set_tests_properties(models.lora_against_peft PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
