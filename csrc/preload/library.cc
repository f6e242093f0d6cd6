#include "preload/library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>

#include "base/errors.h"
#include "base/tell_once.h"
#include "preload/below.h"
#include "runtime/environment.h"
#include "runtime/rank_process.h"

namespace gradred::preload {
namespace {

MoreFunctions functions{};
enum class Core : std::uint8_t { kNew, kBegun, kFailed };
std::mutex begin_mutex;
void* mpi_library = nullptr;
std::atomic<Core> core{Core::kNew};
std::atomic<bool> stands_aside{false};
pid_t loaded_in = 0;  // forked children end too

template <class Function>
void resolve(void* library, const char* name, Function& function) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw TransportError(std::string("the MPI has no ") + name);
  function = reinterpret_cast<Function>(found);
}

void attach(void* library) {
  resolve(library, "PMPI_Comm_call_errhandler", functions.Comm_call_errhandler);
  resolve(library, "PMPI_Add_error_class", functions.Add_error_class);
  resolve(library, "PMPI_Add_error_string", functions.Add_error_string);
  resolve(library, "PMPI_Type_size", functions.Type_size);
  resolve(library, "PMPI_Type_get_extent", functions.Type_get_extent);
  resolve(library, "PMPI_Pack", functions.Pack);
  resolve(library, "PMPI_Unpack", functions.Unpack);
  mpi::load(library);
  const bool narrow = mpi::get().is.handle_bytes == 4;
  handle_mask = narrow ? mpi::Handle{0xffffffff} : ~mpi::Handle{0};
  pthread_atfork(nullptr, nullptr, [] { process = Process::kNoRank; });
  mpi_library = library;
}

void report(std::string why) {
  if (!why.empty() && why.back() == '.') why.pop_back();
  tell_once(why + ". The MPI carries out all calls of this program");
}

// In Python, gradred itself may be imported before the first call.
bool is_python() { return dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr; }

void begin_core() {
  try {
    begin(mpi_library);
    core = Core::kBegun;
    if (!settings().metrics.empty() && !is_python()) {
      tell_once("GRADRED_METRICS needs Python: this program has no metrics");
    }
  } catch (const std::exception& error) {
    core = Core::kFailed;
    report(error.what());
  }
}

using Flag = int(int*);
bool is_set(Flag* function) {
  int flag = 0;
  return function != nullptr && function(&flag) == 0 && flag != 0;
}
Flag* flag_named(void* library, const char* name) {
  return reinterpret_cast<Flag*>(dlsym(library, name));
}
// Not if the program has only sessions. Such programs come here in each call.
bool runs(void* library) {
  static auto* const initialized = flag_named(library, "PMPI_Initialized");
  static auto* const finalized = flag_named(library, "PMPI_Finalized");
  return is_set(initialized) && !is_set(finalized);
}

// At the end of the program.
void report_no_call() {
  if (process != Process::kNew || stands_aside || getpid() != loaded_in) return;
  for (const char* name : {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"}) {
    if (const std::string rank = variable(name); !rank.empty() && rank != "0") return;
  }
  void* const library = library_below(nullptr);
  if (library == nullptr || !is_set(flag_named(library, "PMPI_Initialized"))) return;
  report(
      "No call of this program came to libgradred_mpi.so: the program has loaded its MPI with "
      "RTLD_DEEPBIND, or a tool that was loaded before calls the MPI itself");
}
[[gnu::constructor]] void at_load() {
  loaded_in = getpid();
  std::atexit(report_no_call);
}

std::optional<DType> fortran_dtype_of(mpi::Handle type) {
  const auto dtype = mpi::get().fortran_dtype(type);
  int bytes = 0;
  const bool is_usual =
      dtype && functions.Type_size(type, &bytes) == 0 && bytes == static_cast<int>(size_of(*dtype));
  return is_usual ? dtype : std::nullopt;
}

template <class Value>
class Remembered {
 public:
  template <class Find>
  std::optional<Value> get(mpi::Handle handle, Find find) {
    Entry& entry = entries_[(handle ^ handle >> 4 ^ handle >> 8) % kEntries];
    if (!entry.known || entry.handle != handle) [[unlikely]] {
      entry = {handle, find(handle), true};
    }
    return entry.value;
  }

 private:
  static constexpr std::size_t kEntries = 16;
  struct Entry {
    mpi::Handle handle = 0;
    std::optional<Value> value;
    bool known = false;
  };
  std::array<Entry, kEntries> entries_;
};

}  // namespace

const MoreFunctions& more() { return functions; }

bool begin_in(const void* caller) noexcept {
  void* const library = library_below(caller);
  if (library == nullptr || !runs(library)) return false;
  const std::lock_guard lock(begin_mutex);
  if (process != Process::kNew) return process == Process::kRank;
  try {
    attach(library);
    if (!is_python()) begin_core();
    process = Process::kRank;
  } catch (const std::exception& error) {
    report(error.what());
    process = Process::kNoRank;
  }
  return process == Process::kRank;
}

bool can_serve() noexcept {
  const std::lock_guard lock(begin_mutex);
  if (stands_aside) return false;
  if (core == Core::kNew) begin_core();
  return core == Core::kBegun;
}

bool core_has_begun() { return core == Core::kBegun; }

std::optional<DType> dtype_of(mpi::Handle type) {
  static thread_local Remembered<DType> known;
  return known.get(mpi::get().normalise(type), [](mpi::Handle handle) {
    const auto dtype = mpi::get().dtype(handle);
    return dtype ? dtype : fortran_dtype_of(handle);
  });
}

std::optional<Op> op_of(mpi::Handle op) {
  static thread_local Remembered<Op> known;
  return known.get(mpi::get().normalise(op),
                   [](mpi::Handle handle) { return mpi::get().op(handle); });
}

}  // namespace gradred::preload

// Called by gradred's extension for Python, which has a core of its own.
extern "C" void gradred_stand_aside() { gradred::preload::stands_aside = true; }
