// Operations that a program makes of functions of its own, beside those of kOpInfo: each distinct
// one gets a tag when it is first made, which lasts as long as the process and is no other's.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/types.h"

namespace gradred {

// The tag of the operation with this name, and with this hash of what its function does, by which
// ranks agree on it. Throws UsageError where there are no tags left.
Op user_op(std::string_view name, std::uint64_t hash);
std::optional<Op> find_user_op(std::string_view name);
std::uint64_t user_op_hash(Op op);

}  // namespace gradred
