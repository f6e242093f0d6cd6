#include "device/compile/user_functions.h"

#include <map>
#include <mutex>
#include <utility>

namespace gradred::device {
namespace {

struct KnownFunctions {
  std::mutex mutex;
  std::map<std::pair<Op, DType>, UserFunction> all;  // nodes of the map do not move
};

KnownFunctions& functions() {
  static auto& only =
      *new KnownFunctions;  // never freed: threads may use it while the process ends
  return only;
}

}  // namespace

void add_user_function(Op op, DType dtype, UserFunction function) {
  const std::lock_guard lock(functions().mutex);
  functions().all.try_emplace({op, dtype}, std::move(function));
}

const UserFunction* find_user_function(Op op, DType dtype) {
  const std::lock_guard lock(functions().mutex);
  const auto found = functions().all.find({op, dtype});
  return found != functions().all.end() ? &found->second : nullptr;
}

}  // namespace gradred::device
