#include "mpi/mpi.h"

#include <dlfcn.h>

#include <array>
#include <atomic>

#include "base/errors.h"
#include "mpi/mpi_families.h"

namespace gradred::mpi {
namespace {

struct Loaded {
  Mpi mpi;
  FamilyTables tables;
};

Loaded* table = nullptr;  // set once, before any communicator exists; never freed

void* symbol(void* library, const char* name) { return dlsym(library, name); }

// A constant of the library, where the library itself finds it: a program that was linked with the
// library may have a copy of it (a copy relocation), which then stands for it in the process.
void* constant(void* library, const char* name) {
  void* const own = dlsym(library, name);
  void* const shown = own != nullptr ? dlsym(RTLD_DEFAULT, name) : nullptr;
  return shown != nullptr ? shown : own;
}

// Prefers the profiling name, so that tools that intercept the user's MPI calls do not see
// gradred's own.
template <class Function>
void resolve(void* library, const char* name, Function& function) {
  void* found = symbol(library, (std::string("PMPI_") + name).c_str());
  if (found == nullptr) found = symbol(library, (std::string("MPI_") + name).c_str());
  if (found == nullptr) {
    throw TransportError(std::string("the MPI of this process has no MPI_") + name +
                         "; gradred needs an MPI of version 3.1 or later");
  }
  function = reinterpret_cast<Function>(found);
}

// For functions that only some MPIs have.
template <class Function>
void resolve_if_there(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(symbol(library, name));
}

void resolve_kinds(void* lib, Functions& f) {
  for (std::size_t i = 0; i < kCalledKinds; ++i) {
    const auto kind = static_cast<Kind>(i);
    const std::string name = "I" + std::string(name_of(kind));
    if (reduces(kind)) {
      resolve(lib, name.c_str(), f.Ireductions[i]);
    } else if (has_blocks(kind) && has_root(kind)) {
      resolve(lib, name.c_str(), f.Irooted_moves[i]);
    } else if (has_blocks(kind)) {
      resolve(lib, name.c_str(), f.Imoves[i]);
    }
  }
}

Functions resolve_all(void* lib) {
  Functions f{};
  resolve(lib, "Initialized", f.Initialized);
  resolve(lib, "Init_thread", f.Init_thread);
  resolve(lib, "Finalized", f.Finalized);
  resolve(lib, "Finalize", f.Finalize);
  resolve(lib, "Query_thread", f.Query_thread);
  resolve(lib, "Get_library_version", f.Get_library_version);
  resolve(lib, "Error_string", f.Error_string);
  resolve(lib, "Comm_rank", f.Comm_rank);
  resolve(lib, "Comm_size", f.Comm_size);
  resolve(lib, "Comm_idup", f.Comm_idup);
  resolve(lib, "Comm_free", f.Comm_free);
  resolve(lib, "Comm_group", f.Comm_group);
  resolve(lib, "Comm_get_parent", f.Comm_get_parent);
  resolve(lib, "Comm_test_inter", f.Comm_test_inter);
  resolve(lib, "Comm_set_errhandler", f.Comm_set_errhandler);
  resolve(lib, "Comm_get_errhandler", f.Comm_get_errhandler);
  resolve(lib, "Errhandler_free", f.Errhandler_free);
  resolve(lib, "Comm_create_keyval", f.Comm_create_keyval);
  resolve(lib, "Comm_set_attr", f.Comm_set_attr);
  resolve(lib, "Comm_get_attr", f.Comm_get_attr);
  resolve(lib, "Group_size", f.Group_size);
  resolve(lib, "Group_translate_ranks", f.Group_translate_ranks);
  resolve(lib, "Group_free", f.Group_free);
  resolve(lib, "Isend", f.Isend);
  resolve(lib, "Irecv", f.Irecv);
  resolve(lib, "Issend", f.Issend);
  resolve(lib, "Testsome", f.Testsome);
  resolve(lib, "Testall", f.Testall);
  resolve(lib, "Test", f.Test);
  resolve(lib, "Cancel", f.Cancel);
  resolve(lib, "Request_free", f.Request_free);
  resolve(lib, "Iprobe", f.Iprobe);
  resolve(lib, "Get_count", f.Get_count);
  resolve(lib, "Allreduce", f.Allreduce);
  resolve(lib, "Ibcast", f.Ibcast);
  resolve(lib, "Iallgather", f.Iallgather);
  resolve(lib, "Iallreduce", f.Iallreduce);
  resolve(lib, "Op_create", f.Op_create);
  resolve(lib, "Ibarrier", f.Ibarrier);
  resolve(lib, "Grequest_start", f.Grequest_start);
  resolve(lib, "Grequest_complete", f.Grequest_complete);
  resolve_if_there(lib, "PMPIX_Grequest_start", f.Grequest_start_driven);
  if (f.Grequest_start_driven == nullptr) {  // MPICH's library of the standard ABI
    resolve_if_there(lib, "MPIX_Grequest_start", f.Grequest_start_driven);
  }
  resolve_if_there(lib, "MPIX_Query_cuda_support", f.Query_cuda_support);
  resolve_if_there(lib, "opal_progress_register", f.Progress_register);
  resolve_if_there(lib, "opal_progress_unregister", f.Progress_unregister);
  resolve(lib, "Status_set_elements", f.Status_set_elements);
  resolve(lib, "Status_set_cancelled", f.Status_set_cancelled);
  resolve_kinds(lib, f);
  return f;
}

template <class Value>
std::optional<Value> find(std::span<const Named<Value>> names, Handle handle) {
  for (const Named<Value>& name : names) {
    if (name.handle == handle) return name.value;
  }
  return std::nullopt;
}

template <class Value>
std::optional<Handle> find_handle(std::span<const Named<Value>> names, Value value) {
  for (const Named<Value>& name : names) {
    if (name.value == value) return name.handle;
  }
  return std::nullopt;
}

}  // namespace

bool loaded() { return table != nullptr; }

bool initialized() {
  static std::atomic<bool> once{false};  // stays true once set
  if (once.load(std::memory_order_relaxed)) return true;
  int found = 0;
  get().call.Initialized(&found);
  once.store(found != 0, std::memory_order_relaxed);
  return found != 0;
}

int thread_level() {
  constexpr int kUnknown = -1;
  static std::atomic<int> known{kUnknown};  // MPI_Init sets it for good
  int level = known.load(std::memory_order_relaxed);
  if (level != kUnknown) return level;
  get().check(get().call.Query_thread(&level), "MPI_Query_thread");
  known.store(level, std::memory_order_relaxed);
  return level;
}

const Mpi& get() {
  if (table == nullptr) throw UsageError("MPI is not loaded: import mpi4py.MPI first");
  return table->mpi;
}

void load(void* library) {
  if (table != nullptr) return;
  const Family family = find_family(library, symbol);
  const FamilyTables tables = tables_of(family, library, constant);
  table = new Loaded{{family, resolve_all(library), tables.constants}, tables};
}

Mpi& for_tests() {
  if (table == nullptr) {
    constexpr Family family = Family::kStandardAbi;  // its tables need no library
    const FamilyTables tables = tables_of(family, nullptr, nullptr);
    table = new Loaded{{family, {}, tables.constants}, tables};
  }
  return table->mpi;
}

std::optional<DType> Mpi::dtype(Handle type) const {
  return find(table->tables.types, normalise(type));
}

std::optional<DType> Mpi::fortran_dtype(Handle type) const {
  return find(table->tables.fortran_types, normalise(type));
}

std::optional<Op> Mpi::op(Handle op) const { return find(table->tables.ops, normalise(op)); }

std::optional<Handle> Mpi::handle_of(DType dtype) const {
  return find_handle(table->tables.types, dtype);
}
std::optional<Handle> Mpi::handle_of(Op op) const { return find_handle(table->tables.ops, op); }

int Mpi::new_attribute(int (*on_delete)(Handle, int, void*, void*)) const {
  const auto no_copy = [](Handle, int, void*, void*, void*, int* flag) {
    *flag = 0;
    return 0;
  };
  int key = 0;
  check(call.Comm_create_keyval(no_copy, on_delete, &key, nullptr), "MPI_Comm_create_keyval");
  return key;
}

void Mpi::check(int code, const char* what) const {
  if (code == 0) return;
  std::array<char, 1024> text{};
  int length = 0;
  call.Error_string(code, text.data(), &length);
  throw TransportError(std::string(what) + " failed in the MPI underneath: " + text.data());
}

std::string Mpi::version() const {
  std::string text(8192, '\0');
  int length = 0;
  call.Get_library_version(text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  while (!text.empty() && (text.back() == '\0' || text.back() == '\n')) text.pop_back();
  return text;
}

}  // namespace gradred::mpi
