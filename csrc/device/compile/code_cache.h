// A cache of compiled code on disk: one file for each source and architecture, shared by processes.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace gradred::device {

// A damaged file counts as missing, and a file that cannot be written is skipped silently.
class CodeCache {
 public:
  // Makes `folder` if it is missing; if it is empty, nothing is cached. The file's name contains a
  // hash of `sources`.
  CodeCache(const std::string& folder, const std::string& name,
            std::initializer_list<std::string_view> sources);

  std::optional<std::string> read() const;
  void write(const std::string& code) const;

 private:
  const std::string folder_;
  std::string path_;
};

}  // namespace gradred::device
