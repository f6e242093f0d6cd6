#include "runtime/destinations.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "base/errors.h"
#include "base/trace.h"
#include "mpi/mpi.h"
#include "runtime/knobs.h"

namespace gradred {
namespace {

bool is_folder(const std::string& path) {
  struct stat found{};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

// Why a file cannot be written: a path and errno; 0: it can be written.
struct Trouble {
  std::string path;
  int error = 0;
};

Trouble make_folders(const std::string& folder) {
  for (std::size_t end = 0; end != std::string::npos;) {
    end = folder.find('/', end + 1);
    const std::string part = folder.substr(0, end);
    if (part.empty() || mkdir(part.c_str(), 0777) == 0 || is_folder(part)) continue;
    if (errno != EEXIST || end == std::string::npos) return {part, errno};
  }
  return {};
}

Trouble make(const std::string& target) {
  const std::string folder = target.substr(0, target.rfind('/'));
  if (Trouble trouble = make_folders(folder); trouble.error != 0) return trouble;
  if (access((folder + "/").c_str(), W_OK | X_OK) != 0) return {target, errno};
  if (is_folder(target)) return {target, EISDIR};
  return {};
}

// The rank in MPI_COMM_WORLD; -1 if there is no MPI, or it does not run.
int own_rank() {
  if (!mpi::loaded()) return -1;
  const mpi::Mpi& mpi = mpi::get();
  int initialized = 0, finalized = 0, rank = 0;
  mpi.call.Initialized(&initialized);
  mpi.call.Finalized(&finalized);
  if (initialized == 0 || finalized != 0) return -1;
  mpi.check(mpi.call.Comm_rank(mpi.is.comm_world, &rank), "MPI_Comm_rank");
  return rank;
}

std::string from_root(const std::string& path) {
  std::string whole = std::filesystem::absolute(path).lexically_normal();
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

// Paths that were requested before, each with its absolute path at that time; and files whose
// folder was made.
struct Seen {
  std::mutex mutex;
  std::map<std::string, std::string> from_root;
  std::set<std::string> made;
};
Seen& seen() {
  static auto* seen = new Seen;
  return *seen;
}

}  // namespace

std::string require_destination(std::string_view knob, const std::string& path) {
  const std::lock_guard lock(seen().mutex);
  std::string& whole = seen().from_root[path];
  if (whole.empty()) whole = from_root(path);
  int rank = 0;
  if (path.substr(0, path.rfind('/') + 1).find("{rank}") != std::string::npos) {
    rank = own_rank();
    if (rank < 0) return whole;  // the first communicator asks again
  }
  const std::string target = trace_path(whole, rank);
  if (seen().made.contains(target)) return whole;
  if (const Trouble trouble = make(target); trouble.error != 0) {
    throw UsageError(variable_of(knob_named(knob)) + "=" + path + ": " + trouble.path +
                     " cannot be written (" + std::strerror(trouble.error) +
                     "). Name a file in a folder that exists or can be made.");
  }
  seen().made.insert(target);
  return whole;
}

}  // namespace gradred
