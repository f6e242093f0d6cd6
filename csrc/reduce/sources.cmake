# Compiles kernels/kernels.cc once per instruction set, each with its own flags, into object
# libraries that become part of gradred_core. reduce.cc chooses among them at run time. They use the
# optimisation level and the warnings of the folder that includes this file.

set(gradred_kernel_sets generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND gradred_kernel_sets avx2 avx512)
  set(gradred_kernel_flags_avx2 -mavx2 -mf16c)
  set(gradred_kernel_flags_avx512 -mavx2 -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq
                                  -mprefer-vector-width=512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
  list(APPEND gradred_kernel_sets neon)
  set(gradred_kernel_flags_neon -DGRADRED_FLOAT16_INSTRUCTIONS)
endif()

# With contraction, a * b + c would be rounded once on some instruction sets and twice on others.
# The next two flags change no result; they let the compiler turn comparisons into masks. The -Wno
# flags are for GCC 12, which warns inside its own AVX-512 header.
set(gradred_kernel_flags -ffp-contract=off -fno-math-errno -fno-trapping-math)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND gradred_kernel_flags -Wno-maybe-uninitialized -Wno-uninitialized)
endif()

foreach(isa IN LISTS gradred_kernel_sets)
  set(kernels gradred_kernels_${isa})
  add_library(${kernels} OBJECT ${CMAKE_CURRENT_LIST_DIR}/kernels/kernels.cc)
  target_include_directories(${kernels} PRIVATE ${CMAKE_CURRENT_LIST_DIR}/..)
  target_compile_definitions(${kernels} PRIVATE GRADRED_ISA=${isa})
  target_compile_options(${kernels} PRIVATE ${gradred_kernel_flags} ${gradred_kernel_flags_${isa}})
  target_sources(gradred_core PRIVATE $<TARGET_OBJECTS:${kernels}>)
endforeach()
