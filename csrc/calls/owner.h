// The object that owns what operations in flight use: a communicator. They keep it alive.
#pragma once

#include <memory>

namespace gradred {

class Owner : public std::enable_shared_from_this<Owner> {
 public:
  Owner() = default;
  virtual ~Owner() = default;
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  // A pointer to a part of this object that keeps the whole object alive.
  template <class Part>
  std::shared_ptr<Part> keep(Part& part) {
    return {shared_from_this(), &part};
  }
};

}  // namespace gradred
