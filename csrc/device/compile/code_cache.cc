#include "device/compile/code_cache.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/files.h"
#include "base/signature.h"

namespace gradred::device {
namespace {

constexpr std::uint64_t kSeed = 0xcbf29ce484222325ULL;
// Each file begins with a hash of its code.
constexpr std::size_t kHashBytes = sizeof(std::uint64_t);

std::string in_hexadecimal(std::uint64_t number) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

CodeCache::CodeCache(const std::string& folder, const std::string& name,
                     std::initializer_list<std::string_view> sources)
    : folder_(folder.empty() ? "" : folder + "/kernels") {
  std::uint64_t hash = kSeed;
  for (const std::string_view one : sources) hash = mix(hash, one);
  path_ = folder_ + "/" + name + "-" + in_hexadecimal(hash);
}

std::optional<std::string> CodeCache::read() const {
  if (folder_.empty()) return std::nullopt;
  std::ifstream file(path_, std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (content.size() <= kHashBytes) return std::nullopt;
  std::uint64_t hash = 0;
  std::memcpy(&hash, content.data(), sizeof hash);
  content.erase(0, kHashBytes);
  if (hash != mix(kSeed, content)) return std::nullopt;
  return content;
}

// Writes to a temporary name first: other processes may read the file meanwhile, or write it, too.
void CodeCache::write(const std::string& code) const {
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const std::string part = path_ + "." + std::to_string(getpid());
  const std::uint64_t hash = mix(kSeed, code);
  const std::string content(reinterpret_cast<const char*>(&hash), sizeof hash);
  if (write_file(part, content + code) == 0) std::filesystem::rename(part, path_, ignored);
  std::filesystem::remove(part, ignored);  // if the renaming failed
}

}  // namespace gradred::device
