#include "liveness/shown_ranks.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/memory_files.h"
#include "base/random.h"
#include "liveness/process.h"
#include "liveness/status_page.h"

namespace gradred {
namespace {

// Launcher processes above the ranks, on the host of mpiexec and on the others.
constexpr auto kLaunchers = std::to_array<std::string_view>(
    {"mpiexec", "mpirun", "prterun", "prun", "srun", "orterun", "hydra_pmi_proxy", "prted", "orted",
     "slurmstepd", "torchrun", "pt_elastic"});
constexpr const char* kAbout = "gradred pid %lld rank %d size %d spawned %d";

// The numbers among the names in a folder of /proc.
std::vector<std::int64_t> numbers_in(const std::string& folder) {
  std::vector<std::int64_t> found;
  const auto close = [](DIR* open) { closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> open(opendir(folder.c_str()), close);
  if (!open) return found;  // another user's process, or it has ended
  while (const dirent* entry = readdir(open.get())) {
    const std::string_view name(entry->d_name);
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && end == name.data() + name.size()) found.push_back(number);
  }
  return found;
}

bool is_status_file(const std::string& link) {
  static const std::string begin = std::string("/memfd:") + kStatusFile;
  std::array<char, 64> target{};
  const auto length = readlink(link.c_str(), target.data(), target.size());
  return length > 0 &&
         std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with(begin);
}

// Returns nothing if the number now belongs to another file, for example a pipe.
std::optional<AboutRank> read_about(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return std::nullopt;
  std::array<char, 256> text{};
  const auto bytes = pread(file, text.data(), text.size() - 1, 0);
  close(file);
  AboutRank about;
  long long pid = 0;
  int spawned = 0;
  if (bytes <= 0 ||
      std::sscanf(text.data(), kAbout, &pid, &about.rank, &about.size, &spawned) != 4) {
    return std::nullopt;
  }
  about.pid = pid;
  about.spawned = spawned != 0;
  return about;
}

std::string name_of_new_file() {
  std::array<char, 40> name{};
  std::snprintf(name.data(), name.size(), "%s-%016llx", kStatusFile,
                static_cast<unsigned long long>(random_number()));
  return name.data();
}

std::string text_of(const AboutRank& about) {
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), kAbout, static_cast<long long>(about.pid), about.rank,
                about.size, about.spawned ? 1 : 0);
  return text.data();
}

std::optional<AboutRank>& shown() {
  static auto* about = new std::optional<AboutRank>;
  return *about;
}

}  // namespace

void show_rank(const AboutRank& about) {
  // Other processes identify the process by the file's name, which they can read without opening
  // it.
  const int file = make_memory_file(name_of_new_file().c_str());
  if (file < 0) return;
  const std::string text = text_of(about);
  const bool written =
      ftruncate(file, static_cast<off_t>(StatusPage::kOffset + sizeof(StatusPage))) == 0 &&
      pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!written || !use_status_file(file)) {
    close(file);
    return;
  }
  shown() = about;
}

std::optional<AboutRank> shown_by_this_process() {
  const auto& about = shown();
  return about && about->pid == getpid() ? about : std::nullopt;
}

std::vector<ShownRank> shown_ranks() {
  std::vector<ShownRank> found;
  for (const std::int64_t pid : numbers_in("/proc")) {
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    for (const std::int64_t file : numbers_in(folder)) {
      const std::string path = folder + "/" + std::to_string(file);
      if (!is_status_file(path)) continue;
      // Forked children hold the file as well, but its text names their parent.
      if (const auto about = read_about(path); about && about->pid == pid) {
        found.push_back({*about, static_cast<std::int32_t>(file)});
      }
    }
  }
  return found;
}

std::int64_t launcher_of(std::int64_t pid, bool nearest) {
  std::int64_t found = 0;
  while (pid > 1) {
    const auto seen = read_stat(pid);
    if (!seen) break;
    if (std::ranges::any_of(kLaunchers,
                            [&](std::string_view name) { return seen->name.starts_with(name); })) {
      found = pid;
      if (nearest) break;
    }
    pid = seen->parent;
  }
  return found;
}

}  // namespace gradred
