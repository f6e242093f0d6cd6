// Operations that a program creates from its own functions, in addition to those of kOpInfo. Each
// distinct operation gets a tag when it is first created. The tag lasts as long as the process and
// is never reused.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/types.h"

namespace gradred {

// Returns the tag of the operation with this name. `hash` identifies what its function does; ranks
// compare it to agree on the operation. Throws UsageError if no tags are left.
Op user_op(std::string_view name, std::uint64_t hash);
std::optional<Op> find_user_op(std::string_view name);
std::uint64_t user_op_hash(Op op);

}  // namespace gradred
