# The helpers that give every module the same shape and hold the layers apart: a module's headers
# reach only those that name it in USES, so an upward include does not compile.

include_guard(GLOBAL)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

option(DP_SANITIZE "Build with AddressSanitizer and UndefinedBehaviorSanitizer" OFF)
option(DP_TSAN "Build with ThreadSanitizer" OFF)
option(DP_FUZZ "Build the fuzz targets for libFuzzer (clang)" OFF)
set(DP_TSAN_BIN "" CACHE PATH "bin/ of a build with DP_TSAN whose threaded tests run here too")
# The first race ends the process, so that the tests of daemons see it.
set(DP_TSAN_ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1 ignore_noninstrumented_modules=1 \
suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
# When a test counts as hanging: far beyond what the slowest takes on a machine with other work.
set(DP_HANG_SECONDS 900)
option(DP_WERROR "Treat warnings as errors" ON)

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

add_library(dp_flags INTERFACE)
target_compile_definitions(dp_flags INTERFACE _GNU_SOURCE DP_VERSION="${PROJECT_VERSION}")
target_compile_options(dp_flags INTERFACE
  -Wall -Wextra -fno-omit-frame-pointer -fstack-protector-strong
  $<$<BOOL:${DP_WERROR}>:-Werror>
  $<$<COMPILE_LANGUAGE:C>:-Wpedantic;-Wshadow;-Wstrict-prototypes;-Wmissing-prototypes;-Wconversion;-Wno-sign-conversion;-Wno-format-truncation;-Wvla>)
if(DP_SANITIZE)
  target_compile_options(dp_flags INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined)
  target_link_options(dp_flags INTERFACE -fsanitize=address,undefined)
endif()
if(DP_TSAN)
  target_compile_options(dp_flags INTERFACE -fsanitize=thread)
  target_link_options(dp_flags INTERFACE -fsanitize=thread)
endif()
if(DP_FUZZ)
  target_compile_options(dp_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
    -fno-sanitize-recover=undefined)
  target_link_options(dp_flags INTERFACE -fsanitize=address,undefined)
endif()

# dp_library(NAME PKG...) - an outside library found by pkg-config, as the target dp_ext_NAME.
function(dp_library name)
  if(NOT TARGET dp_ext_${name})
    pkg_check_modules(DP_EXT_${name} REQUIRED IMPORTED_TARGET GLOBAL ${ARGN})
    add_library(dp_ext_${name} INTERFACE)
    target_link_libraries(dp_ext_${name} INTERFACE PkgConfig::DP_EXT_${name})
  endif()
endfunction()

# dp_module(NAME SOURCES f... [USES module...] [LINK target...])
# A static library dp_NAME with public headers in include/ and private ones in src/. USES passes on
# the headers of the named modules; LINK names what stays private (an outside library).
function(dp_module name)
  cmake_parse_arguments(M "" "" "SOURCES;USES;LINK" ${ARGN})
  if(M_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "dp_module(${name}): unexpected ${M_UNPARSED_ARGUMENTS}")
  endif()
  add_library(dp_${name} STATIC ${M_SOURCES})
  target_include_directories(dp_${name} PUBLIC include PRIVATE src)
  list(TRANSFORM M_USES PREPEND dp_)
  if(NOT name STREQUAL "base")
    list(APPEND M_USES dp_base)
  endif()
  target_link_libraries(dp_${name} PUBLIC ${M_USES} PRIVATE dp_flags ${M_LINK})
  set_property(GLOBAL APPEND PROPERTY DP_MODULES dp_${name})
endfunction()

# dp_program(NAME SOURCES f... [USES module...] [LINK target...]) - an executable in bin/.
function(dp_program name)
  cmake_parse_arguments(M "" "" "SOURCES;USES;LINK" ${ARGN})
  add_executable(${name} ${M_SOURCES})
  list(TRANSFORM M_USES PREPEND dp_)
  target_include_directories(${name} PRIVATE src)
  target_link_libraries(${name} PRIVATE dp_flags ${M_USES} ${M_LINK} dp_base)
  install(TARGETS ${name} RUNTIME DESTINATION bin)
endfunction()

# dp_test(NAME SOURCES f... [USES module...] [LINK target...] [LABELS l...] [TIMEOUT s] [THREADS])
# A cmocka program run by ctest. A test links modules, never a program. THREADS: it, or a program
# that it starts, has threads; it is also run as tsan_NAME where DP_TSAN_BIN is set.
function(dp_test name)
  cmake_parse_arguments(M "THREADS" "TIMEOUT" "SOURCES;USES;LINK;LABELS" ${ARGN})
  if(NOT M_LABELS)
    set(M_LABELS unit)
  endif()
  if(NOT M_TIMEOUT)
    set(M_TIMEOUT ${DP_HANG_SECONDS})
  endif()
  dp_library(cmocka cmocka)
  add_executable(test_${name} ${M_SOURCES})
  list(TRANSFORM M_USES PREPEND dp_)
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support)
  target_compile_definitions(test_${name} PRIVATE DP_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(test_${name} PRIVATE dp_flags ${M_USES} ${M_LINK} dp_base dp_ext_cmocka)
  if(M_THREADS)
    list(APPEND M_LABELS threads)
    set_property(GLOBAL APPEND PROPERTY DP_THREADED_TESTS test_${name})
  endif()
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES LABELS "${M_LABELS}" TIMEOUT ${M_TIMEOUT})
  if(M_THREADS AND DP_TSAN)
    math(EXPR slow "2 * ${M_TIMEOUT}")
    set_tests_properties(${name} PROPERTIES TIMEOUT ${slow} ENVIRONMENT "${DP_TSAN_ENVIRONMENT}")
  elseif(M_THREADS AND DP_TSAN_BIN)
    add_test(NAME tsan_${name} COMMAND ${DP_TSAN_BIN}/test_${name})
    math(EXPR slow "2 * ${M_TIMEOUT}")
    set_tests_properties(tsan_${name} PROPERTIES LABELS tsan TIMEOUT ${slow}
      ENVIRONMENT "${DP_TSAN_ENVIRONMENT}")
  endif()
endfunction()

# dp_script_test(NAME COMMAND c... [LABELS l...] [TIMEOUT s])
# A script run by ctest; exit status 77 means "skipped", with the reason on its last line.
function(dp_script_test name)
  cmake_parse_arguments(M "" "TIMEOUT" "COMMAND;LABELS" ${ARGN})
  if(NOT M_TIMEOUT)
    set(M_TIMEOUT ${DP_HANG_SECONDS})
  endif()
  add_test(NAME ${name} COMMAND ${M_COMMAND})
  set_tests_properties(${name} PROPERTIES LABELS "${M_LABELS}" TIMEOUT ${M_TIMEOUT}
    SKIP_RETURN_CODE 77
    ENVIRONMENT "DP_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};DP_SOURCE=${PROJECT_SOURCE_DIR}")
endfunction()

# dp_proto(NAME PROTOS file.proto...) - the C code that protobuf-c makes of the .proto files below
# proto/, as module dp_NAME.
function(dp_proto name)
  cmake_parse_arguments(M "" "" "PROTOS" ${ARGN})
  find_program(DP_PROTOC_C protoc-c REQUIRED)
  dp_library(protobuf_c libprotobuf-c)
  set(out "${CMAKE_CURRENT_BINARY_DIR}/gen")
  file(MAKE_DIRECTORY "${out}")
  set(generated)
  foreach(proto IN LISTS M_PROTOS)
    string(REGEX REPLACE "\\.proto$" "" stem "${proto}")
    add_custom_command(
      OUTPUT "${out}/${stem}.pb-c.c" "${out}/${stem}.pb-c.h"
      COMMAND ${DP_PROTOC_C} --c_out=${out} -I${CMAKE_CURRENT_SOURCE_DIR} ${proto}
      DEPENDS ${M_PROTOS}
      WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
    list(APPEND generated "${out}/${stem}.pb-c.c")
  endforeach()
  add_library(dp_${name} STATIC ${generated})
  target_include_directories(dp_${name} SYSTEM PUBLIC "${out}")
  target_link_libraries(dp_${name} PUBLIC dp_ext_protobuf_c dp_base)
endfunction()
