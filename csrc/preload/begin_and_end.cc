// MPI_Init and MPI_Finalize, where gradred begins and ends in this process.
#include "base/tell_once.h"
#include "preload/below.h"
#include "preload/library.h"
#include "runtime/rank_process.h"

namespace gradred::preload {
namespace {

constinit Below<int(int*, char***)> below_init{"MPI_Init"};
constinit Below<int(int*, char***, int, int*)> below_init_thread{"MPI_Init_thread"};
constinit Below<int()> below_finalize{"MPI_Finalize"};

int begun(const void* caller, int code) noexcept {
  if (code == 0) begin_in(caller);
  return code;
}

int finalize_below() { return below_finalize(nullptr); }

}  // namespace

int finalize_in(const void* caller) noexcept {
  const bool was_rank = process.exchange(Process::kNoRank) == Process::kRank;
  if (!was_rank || !core_has_begun()) return below_finalize(caller);
  try {
    return finalize(&finalize_below);
  } catch (const std::exception& error) {  // a file of results that cannot be written
    print_report(error.what());
    return below_finalize(caller);
  }
}

}  // namespace gradred::preload

extern "C" {

int MPI_Init(int* argc, char*** argv) {
  const void* const caller = gradred::preload::caller();
  return gradred::preload::begun(caller, gradred::preload::below_init(caller, argc, argv));
}

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  const void* const caller = gradred::preload::caller();
  return gradred::preload::begun(
      caller, gradred::preload::below_init_thread(caller, argc, argv, required, provided));
}

int MPI_Finalize() { return gradred::preload::finalize_in(gradred::preload::caller()); }

}  // extern "C"
