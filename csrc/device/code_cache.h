// Compiled code on the disk: one file for each source and architecture, which processes share.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

namespace gradred::device {

// A file that is damaged is as none; one that cannot be written is not missed.
class CodeCache {
 public:
  // `folder` is made where it is missing; empty: nothing is kept. The sources are part of the name.
  CodeCache(const std::string& folder, const std::string& name,
            std::initializer_list<std::string_view> sources);

  std::optional<std::string> read() const;
  void write(const std::string& code) const;

 private:
  const std::string folder_;
  std::string path_;
};

}  // namespace gradred::device
