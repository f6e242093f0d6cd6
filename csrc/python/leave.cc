#include "python/leave.h"

#include <Python.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/failure.h"
#include "comm/farewell.h"
#include "engine/callbacks.h"
#include "mpi/mpi.h"
#include "python/gil.h"
#include "python/strangers.h"

namespace gradred {
namespace {

// glibc tells such handlers the status with which the process ends. The last one registered comes
// first, before the destructors of any library.
void end_at_once(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

// What the dynamic section of a loaded library says. glibc has made its addresses absolute.
struct Dynamic {
  const char* strings = nullptr;
  const ElfW(Sym) * symbols = nullptr;
  const ElfW(Rela) * relocations[2] = {};  // of the procedure linkage table, and the others
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

// The word through which a library calls a function of another one.
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

pid_t rank_process = 0;
int voice = -1;
ino_t voice_inode = 0;

// What `gradred run` must know of this rank. The program may have closed the pipe, and its number
// may stand for another file by now.
void tell_keeper(std::string_view line) {
  struct stat found{};
  if (fstat(voice, &found) != 0 || !S_ISFIFO(found.st_mode) || found.st_ino != voice_inode) return;
  [[maybe_unused]] const auto written = write(voice, line.data(), line.size());
}

int finalize() {
  if (getpid() != rank_process) return 0;  // a fork of the rank: the MPI is not its own
  if (Py_IsInitialized() != 0) {           // the program's own call; else Python has looked at exit
    const PyGILState_STATE held = PyGILState_Ensure();
    if (!process_poisoned) await_strangers();
    {
      const WithoutGil released;
      finish_operations();
    }
    PyGILState_Release(held);
  }
  if (say_farewell(voice >= 0)) {
    tell_keeper("finalize enters\n");
    const int code = mpi::get().call.Finalize();
    finalized();
    tell_keeper("finalize returns\n");
    return code;
  }
  tell_keeper("finalize skips\n");
  on_exit(end_at_once, nullptr);
  return 0;
}

}  // namespace

void finish_operations() noexcept {
  constexpr std::chrono::seconds kLimit(5);  // for callbacks that others have begun to call
  stop_engine();
  done_callbacks().finish(kLimit);
}

void use_voice(int pipe, std::uint64_t inode) {
  voice = pipe;
  voice_inode = inode;
}

bool take_over_finalize(const std::string& mpi4py) {
  void* handle = dlopen(mpi4py.c_str(), RTLD_NOLOAD | RTLD_NOW);
  const link_map* library = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0) return false;
  void** slot = slot_of(*library, "MPI_Finalize");
  rank_process = getpid();
  return slot != nullptr && overwrite(slot, reinterpret_cast<void*>(&finalize));
}

}  // namespace gradred
