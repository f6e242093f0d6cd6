#include "node/agreement/node_call.h"

namespace gradred {

std::size_t NodeCall::longest_part(std::size_t ranks) const {
  if (parts == nullptr) return bytes();
  std::size_t longest = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) longest = std::max(longest, part_bytes(rank));
  return longest;
}

std::size_t NodeCall::input_bytes(std::size_t ranks) const {
  if (kind == Kind::kAllreduce) [[likely]]
    return bytes();
  if (info_of(kind).input == Part::kOwnBlock) return longest_part(ranks);
  return parts == nullptr ? vector_counts(kind, static_cast<int>(ranks)) * bytes() : bytes();
}

std::size_t NodeCall::given_bytes(std::size_t rank, std::size_t ranks) const {
  if (kind == Kind::kAllreduce) [[likely]]
    return bytes();
  if (kind == Kind::kAlltoall) return given_before(rank, ranks, ranks);
  if (info_of(kind).input == Part::kRoots) {
    return root == static_cast<int>(rank) ? input_bytes(ranks) : 0;
  }
  if (led) return bytes();
  return info_of(kind).input == Part::kOwnBlock ? part_bytes(rank) : input_bytes(ranks);
}

const std::byte* NodeCall::input(std::size_t rank) const {
  if (send != kInPlace && kind != Kind::kBcast) return static_cast<const std::byte*>(send);
  const std::size_t at = info_of(kind).input == Part::kOwnBlock ? part_begin(rank) : 0;
  return static_cast<const std::byte*>(recv) + at;
}

std::size_t NodeCall::given_before(std::size_t from, std::size_t to, std::size_t ranks) const {
  std::size_t before = 0;
  for (std::size_t rank = 0; rank < to; ++rank) before += split_bytes(from, rank, ranks);
  return before;
}

std::size_t NodeCall::got_before(std::size_t to, std::size_t from, std::size_t ranks) const {
  std::size_t before = 0;
  for (std::size_t rank = 0; rank < from; ++rank) before += split_bytes(rank, to, ranks);
  return before;
}

}  // namespace gradred
