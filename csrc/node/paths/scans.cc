// Scans in the memory of a host. However long the vector is, the inputs are folded from the left
// and rounded after each step, as by the schedules linear and pipelined. So its length changes no
// bits.
#include <algorithm>
#include <vector>

#include "base/copy_bytes.h"
#include "node/paths/kind_way.h"
#include "reduce/reduce.h"

namespace gradred {
namespace {

class Scans final : public KindWay {
 public:
  using KindWay::KindWay;

  void take(const NodeCall& call, DataPath path) override {
    const RankRange ranks =
        reduced_ranks(call.kind, static_cast<int>(rank_), static_cast<int>(size_));
    const auto count = static_cast<std::size_t>(ranks.count());
    for (std::size_t rank = 0; rank < count; ++rank) {
      operands_[rank] = rank == rank_ ? call.input(rank_) : given(rank, path);
    }
    if (count == 0 || (count == 1 && operands_[0] == call.recv)) return;
    fold(*call.reduce, call.element, call.recv, {operands_.data(), count}, call.count);
  }

  Steps steps(const NodeCall& call) override { return chain(call); }

 private:
  Steps chain(NodeCall call);
  void add(const NodeCall& call, std::size_t piece, std::size_t begin, std::size_t bytes);
  bool is_last() const { return rank_ + 1 == size_; }

  std::vector<std::byte> sum_;  // one piece of what the next rank reads; empty until it is needed
};

// The sums travel up the ranks piece by piece. Step c + 1 of a rank: the next rank can read piece
// c, and this rank has read piece c of the rank before it. A piece overwrites the one of `depth`
// pieces before, once the next rank has read that.
Steps Scans::chain(NodeCall call) {
  const std::size_t piece = usable().piece_bytes / call.element * call.element;
  const std::size_t depth = options().depth, all = call.bytes();
  const std::size_t pieces = (all + piece - 1) / piece;
  place_chunks(std::min(piece, all), pieces);
  for (std::size_t c = 0; c < pieces; ++c) {
    const std::size_t begin = c * piece, bytes = std::min(piece, all - begin);
    while (call.flow != nullptr && !call.flow->has_input(begin + bytes)) {
      co_await Steps::LookAgain{WaitCause::kStream};
    }
    if (rank_ > 0) co_await step_of(rank_ - 1, c + 1);
    if (!is_last() && c >= depth) co_await step_of(rank_ + 1, c - depth + 1);
    add(call, c, begin, bytes);
    step_done(c + 1);
    if (call.flow != nullptr) call.flow->has_result(begin + bytes);
  }
  steps_end(pieces);
}

// Writes one piece of the result and of what the next rank reads.
void Scans::add(const NodeCall& call, std::size_t piece, std::size_t begin, std::size_t bytes) {
  const bool exclusive = call.kind == Kind::kExscan;
  const std::byte* const own = call.input(rank_) + begin;
  auto* const result = static_cast<std::byte*>(call.recv) + begin;
  if (rank_ == 0) {
    if (!is_last()) stores_.give(chunk(rank_, piece), own, bytes);
    if (!exclusive && result != own) copy_bytes(result, own, bytes);
    return;
  }
  const std::byte* const before = chunk(rank_ - 1, piece);
  const std::size_t count = bytes / call.element;
  std::byte* sum = result;
  if (exclusive) {
    if (sum_.size() < bytes) sum_.resize(usable().piece_bytes);
    sum = sum_.data();
  }
  if (!exclusive || !is_last()) call.reduce->pair(sum, before, own, count);
  if (!is_last()) stores_.give(chunk(rank_, piece), sum, bytes);
  if (exclusive) copy_bytes(result, before, bytes);
}

}  // namespace

std::unique_ptr<KindWay> make_scans(NodeAgreement& group, PeerStores& stores) {
  return std::make_unique<Scans>(group, stores);
}

}  // namespace gradred
