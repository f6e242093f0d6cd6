#include "preload/below.h"

#include <dlfcn.h>
#include <link.h>

#include <string>
#include <vector>

#include "base/tell_once.h"

namespace gradred::preload {
namespace {

constexpr int kErrOther = 16;  // MPI_ERR_OTHER is 15 or 16, and any code but 0 is an error

const void* own_base() {
  static const void* const base = [] {
    Dl_info found{};
    return dladdr(reinterpret_cast<const void*>(&is_own), &found) != 0 ? found.dli_fbase : nullptr;
  }();
  return base;
}

constexpr const char* kEveryMpiHas = "PMPI_Allreduce";
std::atomic<void*> known_mpi{nullptr};  // a handle of dlopen, once it is found

void* opened_file(const char* name) {
  const bool is_program = name == nullptr || *name == '\0';
  return dlopen(is_program ? nullptr : name, RTLD_LAZY | RTLD_NOLOAD);
}

// The library or program in which `address` lies, as a handle of dlopen that stays open.
void* opened(const void* address) {
  Dl_info info{};
  link_map* object = nullptr;
  if (dladdr1(address, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0) {
    return nullptr;
  }
  return object != nullptr ? opened_file(object->l_name) : nullptr;
}

void* find_in(void* object, const char* name) {
  void* const found = object != nullptr ? dlsym(object, name) : nullptr;
  return found != nullptr && !is_own(found) ? found : nullptr;
}

// Any library of this process that finds an MPI. For code that jumps to a function instead of
// calling it, so that its address is not known.
void* any_with_mpi() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* all) {
        static_cast<std::vector<std::string>*>(all)->emplace_back(info->dlpi_name);
        return 0;
      },
      &names);
  for (const std::string& name : names) {
    void* const object = name.empty() ? nullptr : opened_file(name.c_str());
    if (find_in(object, kEveryMpiHas) != nullptr) return object;
  }
  return nullptr;
}

}  // namespace

bool is_own(const void* address) {
  Dl_info found{};
  return dladdr(address, &found) != 0 && found.dli_fbase == own_base();
}

// Libraries that were loaded with RTLD_LOCAL, as Python loads its modules and their MPI, are found
// by those that depend on them alone.
void* find_below(const char* name, const void* caller) {
  if (void* const found = find_in(RTLD_NEXT, name)) return found;
  if (void* const found = find_in(known_mpi, name)) return found;
  if (void* const found = find_in(opened(caller), name)) return found;
  return known_mpi == nullptr ? find_in(any_with_mpi(), name) : nullptr;
}

void* library_below(const void* caller) {
  if (known_mpi == nullptr) {
    void* const found = find_below(kEveryMpiHas, caller);
    known_mpi = found != nullptr ? opened(found) : nullptr;
  }
  return known_mpi;
}

int report_missing(const char* name) {
  tell_once(std::string("the MPI of this program has no ") + name);
  return kErrOther;
}

}  // namespace gradred::preload
