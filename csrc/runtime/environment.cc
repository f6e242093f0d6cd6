#include "runtime/environment.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

extern char** environ;

namespace gradred {
namespace {

// The home directory, found as a shell does; empty if there is none.
std::string home() {
  const std::string value = variable("HOME");
  if (!value.empty()) return value;
  std::array<char, 4096> room{};
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, room.data(), room.size(), &found) != 0) return {};
  return found != nullptr && found->pw_dir != nullptr ? found->pw_dir : "";
}

// Reads a number from a variable. No value: the variable is not set, or is not a number.
template <class Number>
std::optional<Number> number_in(const char* name) {
  const std::string text = variable(name);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && !text.empty() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> environment() {
  std::vector<std::pair<std::string, std::string>> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    found.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return found;
}

bool is_environment(std::string& seen) {
  std::size_t begin = 0;
  bool same = true;
  for (char** entry = environ; same && entry != nullptr && *entry != nullptr; ++entry) {
    const std::size_t bytes = std::strlen(*entry) + 1;
    same = seen.compare(begin, bytes, *entry, bytes) == 0;
    begin += bytes;
  }
  if (same && begin == seen.size()) return true;
  seen.clear();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    seen.append(*entry, std::strlen(*entry) + 1);
  }
  return false;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::size_t ranks_on_host() {
  // The variables of Open MPI; of MPICH and Intel MPI; of other launchers with PMI.
  // src/gradred/launch/variables.py has the same list, for ranks that have not started and without
  // this library.
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}) {
    if (const auto ranks = number_in<std::size_t>(name)) return *ranks;
  }
  return 0;
}

std::optional<RankOfJob> rank_of_job() {
  const auto rank = number_in<int>("RANK"), size = number_in<int>("WORLD_SIZE");
  const bool fits = rank && size && *rank >= 0 && *rank < *size;
  return fits ? std::optional(RankOfJob{*rank, *size}) : std::nullopt;
}

std::string figures_folder() {
  const std::string cache = variable("XDG_CACHE_HOME");
  if (cache.starts_with('/')) return cache + "/gradred";
  const std::string own = home();
  return own.starts_with('/') ? own + "/.cache/gradred" : "";
}

}  // namespace gradred
