#include "python/leave.h"

#include <Python.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "mpi/mpi.h"
#include "python/gil.h"
#include "runtime/rank_process.h"

namespace gradred {
namespace {

// The dynamic section of a loaded library. glibc has made its addresses absolute.
struct Dynamic {
  const char* strings = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const ElfW(Rela) * relocations[2] = {};  // PLT relocations, other relocations
  std::size_t bytes[2] = {};

  explicit Dynamic(const link_map& library) {
    for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
      const auto* pointer = reinterpret_cast<const void*>(entry->d_un.d_ptr);
      if (entry->d_tag == DT_STRTAB) strings = static_cast<const char*>(pointer);
      if (entry->d_tag == DT_SYMTAB) symbols = static_cast<const ElfW(Sym)*>(pointer);
      if (entry->d_tag == DT_JMPREL) relocations[0] = static_cast<const ElfW(Rela)*>(pointer);
      if (entry->d_tag == DT_RELA) relocations[1] = static_cast<const ElfW(Rela)*>(pointer);
      if (entry->d_tag == DT_PLTRELSZ) bytes[0] = entry->d_un.d_val;
      if (entry->d_tag == DT_RELASZ) bytes[1] = entry->d_un.d_val;
    }
  }
};

// The pointer through which a library calls a function of another library.
void** slot_of(const link_map& library, const char* function) {
  const Dynamic dynamic(library);
  for (int table = 0; table < 2; ++table) {
    const std::size_t count = dynamic.bytes[table] / sizeof(ElfW(Rela));
    for (std::size_t i = 0; i < count; ++i) {
      const ElfW(Rela) & relocation = dynamic.relocations[table][i];
      const ElfW(Sym) & symbol = dynamic.symbols[ELF64_R_SYM(relocation.r_info)];
      if (std::strcmp(dynamic.strings + symbol.st_name, function) == 0) {
        return reinterpret_cast<void**>(library.l_addr + relocation.r_offset);
      }
    }
  }
  return nullptr;
}

bool overwrite(void** slot, void* value) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(slot) / page * page;
  if (mprotect(reinterpret_cast<void*>(address), page, PROT_READ | PROT_WRITE) != 0) return false;
  *slot = value;
  return true;
}

// The program calls it, or mpi4py does after the last Python code has run.
int finalize_without_gil() {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) return finalize();
  const WithoutGil released;
  return finalize();
}

int init_without_gil(int* argc, char*** argv, int required, int* provided) {
  const auto init = mpi::get().call.Init_thread;
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) {
    return init(argc, argv, required, provided);
  }
  const WithoutGil released;
  return init(argc, argv, required, provided);
}

// Has the library at this path call `ours` where it calls the other function.
bool replace_call(const std::string& path, const char* function, void* ours) {
  void* handle = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW);
  const link_map* library = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0) return false;
  void** slot = slot_of(*library, function);
  return slot != nullptr && overwrite(slot, ours);
}

}  // namespace

bool take_over_finalize(const std::string& mpi4py) {
  return replace_call(mpi4py, "MPI_Finalize", reinterpret_cast<void*>(&finalize_without_gil));
}

bool release_gil_in_init(const std::string& mpi4py) {
  return replace_call(mpi4py, "MPI_Init_thread", reinterpret_cast<void*>(&init_without_gil));
}

}  // namespace gradred
