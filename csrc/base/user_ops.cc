#include "base/user_ops.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "base/errors.h"

namespace gradred {
namespace {

struct UserOp {
  std::string name;
  std::uint64_t hash = 0;
};

// An entry below `count` never changes, so it can be read without a lock by its tag.
struct UserOps {
  std::array<UserOp, kMostUserOps> entries;
  std::atomic<std::size_t> count{0};
  std::mutex mutex;
};

UserOps& all() {
  // Never freed, since threads may read it while the process exits.
  static auto* const only = new UserOps;
  return *only;
}

const UserOp& entry(Op op) {
  const std::size_t index = static_cast<std::size_t>(op) - kFirstUserOp;
  check(is_users(op) && index < all().count.load(std::memory_order_acquire),
        "an operation that nobody has made");
  return all().entries[index];
}

}  // namespace

Op user_op(std::string_view name, std::uint64_t hash) {
  const std::lock_guard lock(all().mutex);
  if (const auto known = find_user_op(name)) {
    check(entry(*known).hash == hash, "two operations of one name");
    return *known;
  }
  const std::size_t index = all().count.load(std::memory_order_relaxed);
  if (index == kMostUserOps) {
    throw UsageError("this process has made " + std::to_string(kMostUserOps) +
                     " operations of functions, and there is no room for more. Make each once, and "
                     "use it again");
  }
  all().entries[index] = {std::string(name), hash};
  all().count.store(index + 1, std::memory_order_release);
  return static_cast<Op>(kFirstUserOp + index);
}

std::optional<Op> find_user_op(std::string_view name) {
  const std::size_t count = all().count.load(std::memory_order_acquire);
  for (std::size_t i = 0; i < count; ++i) {
    if (all().entries[i].name == name) return static_cast<Op>(kFirstUserOp + i);
  }
  return std::nullopt;
}

std::uint64_t user_op_hash(Op op) { return entry(op).hash; }

std::string_view user_op_name(Op op) { return entry(op).name; }

}  // namespace gradred
