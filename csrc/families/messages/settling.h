// How a rank leaves an operation over messages without its result.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "calls/parts.h"
#include "engine/operation.h"

namespace gradred {

// Sends the peers the reason. The returned operation ends when nothing is left of the one that this
// rank has left.
std::shared_ptr<Operation> leave_operation(std::shared_ptr<const MessageParts> parts,
                                           std::uint64_t number, std::string_view reason);

}  // namespace gradred
