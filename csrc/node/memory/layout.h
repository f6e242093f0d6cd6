// The layout of a node group's part of shared memory (pool.h). It lies in two places:
//
//   the lines: Header | RankState of rank 0, 1, ... | gathered announcements | short slots
//   the rooms: ShrinkState of each rank | rings
//
// Each rank owns two short slots and two rings, used by operations in turn. Only the owner writes
// to them. An operation has one slot in a ring, or its exchange chunks. Header, RankStates,
// ShrinkStates and gathered announcements are zeroed at the start; the rest may hold anything.
//
// A program may have thousands of communicators, so a group starts with its lines, which are a few
// pages, and with the first bytes of its rings if its first operation is known to need them. The
// first operation that does not fit into the slots allocates the first bytes of all chunks, or the
// whole rings. The ShrinkStates are allocated by shrinking.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/failure.h"
#include "liveness/process.h"
#include "node/memory/wait.h"

namespace gradred {

inline constexpr std::size_t kCacheLine = 64;
// The hardware fetches cache lines in pairs, so data that different ranks write are this far apart.
inline constexpr std::size_t kApart = 128;
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kShortSlot = 1024;
// Bytes of a slot or chunk that are allocated at first.
inline constexpr std::size_t kBeginning = 2 * kPage;
inline constexpr std::size_t kReasonBytes = 384;
inline constexpr std::size_t kReportBytes = 1536;

// Sizes and limits that all ranks of a group share; those of rank 0 apply. The plan of an operation
// is a function of these, the number of ranks and the agreed arguments.
struct NodeOptions {
  std::size_t slot_bytes = 128 << 10;   // of one slot
  std::size_t chunk_bytes = 256 << 10;  // of one exchange chunk
  std::size_t depth = 4;                // exchange chunks that an operation needs, at least 4
  // Each of a rank's two rings has as many bytes as a core's own cache, and room for `depth` chunks
  // (SharedPart::place() says why).
  std::size_t ring_bytes = 1 << 20;
  std::size_t placed_bytes = 8192;  // from so many bytes on an operation moves on in its ring
  std::size_t one_shot_bytes = 128 << 10;  // limit of peers' bytes that each rank reads in slots
  std::size_t piece_bytes = 64 << 10;      // of a chunk, if two ranks both reduce everything
  std::size_t exchange_bytes = 4 << 20;    // from here on two ranks reduce one half each
  std::size_t streaming_bytes = 4 << 20;   // from here on results bypass the caches
  // From this size on an allreduce may read peers' memory. An allgather or a broadcast may do so
  // from half of it on, since they read each byte only once.
  std::size_t single_copy_bytes = 256 << 10;
  std::size_t block_bytes = 64 << 20;  // such an allreduce works in blocks of this size
  std::size_t tree_ranks = 16;         // from so many ranks on short calls take the tree of flags
  std::size_t ranks_on_host = 0;       // ranks of the whole program; 0: those of this group
  std::size_t threads = 1;             // of each rank that work on an operation of helped_bytes
  std::size_t helped_bytes = 1 << 20;  // or more (helpers.h), if each has a core
  bool sleeps = false;  // waiting ranks usually sleep, as when rank 0 waits for other hosts
  std::uint64_t first_operation = 1;        // number of the first one; tests start just below 2^32
  std::size_t slot_beginning = kBeginning;  // bytes of a slot that are allocated at first
  std::size_t first_bytes = 0;              // of the first operation; 0: not known

  // The sizes of a group that has only its lines, in which no chunk can be used.
  NodeOptions lines() const {
    NodeOptions part = *this;
    part.slot_bytes = std::min(slot_bytes, kShortSlot);
    part.chunk_bytes = part.piece_bytes = 0;
    return part;
  }
  // The sizes of a group that has only the first bytes of its slots and chunks.
  NodeOptions beginning(std::size_t ranks) const {
    NodeOptions part = *this;
    const std::size_t least = (ranks * kCacheLine + kPage - 1) / kPage * kPage;
    part.slot_bytes = std::min(slot_bytes, slot_beginning);
    part.chunk_bytes = std::min(chunk_bytes, std::max(kBeginning, least));
    part.piece_bytes = std::min(piece_bytes, part.chunk_bytes);
    return part;
  }
  // The sizes of a group that has only its lines and the first bytes of its slots.
  NodeOptions slots(std::size_t ranks) const {
    NodeOptions part = beginning(ranks);
    part.chunk_bytes = part.piece_bytes = 0;
    return part;
  }
  // For a group that carries out allreduces of more than half of `bytes` bytes, and no more than
  // that, with memory in proportion. What fits into the slots needs no chunks. Other operations
  // fill at most `depth` of them.
  NodeOptions for_at_most(std::size_t bytes, std::size_t ranks) const {
    NodeOptions part = *this;
    part.first_bytes = bytes;
    part.slot_bytes = fits_slots(bytes / 2 + 1, ranks) ? std::min(slot_bytes, bytes) : kPage;
    part.slot_beginning = part.slot_bytes;
    part.chunk_bytes = fits_slots(bytes, ranks) ? kPage : std::min(chunk_bytes, bytes / depth);
    part.ring_bytes = 0;
    return part;
  }
  bool fits_slots(std::size_t bytes, std::size_t ranks) const {
    return bytes <= slot_bytes && (ranks - 1) * bytes <= one_shot_bytes;
  }
  // Whether each rank reduces the whole vector of an allreduce, instead of a part of it.
  bool reduces_everything(std::size_t bytes, std::size_t ranks) const {
    return fits_slots(bytes, ranks) || (ranks == 2 && bytes < exchange_bytes);
  }
  // Whether results of so many bytes are written past the caches. `in_place` the lines to be
  // written have just been read, so that they need not be fetched.
  bool streams(std::size_t bytes, bool in_place = false) const {
    return bytes >= streaming_bytes && !in_place;
  }
  bool has_tree(std::size_t ranks) const { return ranks >= tree_ranks; }
};

// One cache line: what a rank publishes at the start of an operation, including the data if they
// fit.
struct alignas(kApart) Announcement {
  static constexpr std::size_t kDataBytes = 48;

  std::atomic<std::uint64_t> head;  // operation number << 32 | hash of Signature::detail
  std::uint64_t what;               // Signature::what
  std::byte data[kDataBytes];
};
static_assert(sizeof(Announcement) == kApart && offsetof(Announcement, data) == 16);

// The announcements of some ranks that agree, with their data, as one of them has gathered them
// (flag_tree.h).
struct alignas(kApart) Gathered {
  std::atomic<std::uint64_t> operation;  // the whole number: this may be that of any earlier one
  std::uint64_t head, what;              // of each of the announcements
  std::byte after[kApart - 3 * sizeof(std::uint64_t)];  // the data; those of many ranks are longer

  // Where the data begin, `bytes` of each rank. Programs' reductions may want 16 aligned bytes.
  std::byte* data(std::size_t bytes) { return after + (bytes % 16 == 0 ? 8 : 0); }
  static constexpr std::size_t bytes_for(std::size_t ranks) {
    return (32 + ranks * Announcement::kDataBytes + kApart - 1) / kApart * kApart;
  }
  // However the ranks are divided, this suffices for each of them.
  static constexpr std::size_t kBytesPerRank = 192;
};
static_assert(sizeof(Gathered) == kApart && Gathered::bytes_for(1) <= Gathered::kBytesPerRank &&
              Gathered::bytes_for(2) <= 2 * Gathered::kBytesPerRank);

// Details that only an error message or a profile needs.
struct Particulars {
  std::uint64_t detail;       // Signature::detail
  std::uint64_t arrival_ns;   // of clock.h: when the rank came to operation arrival_of
  std::uint64_t arrival_of;   // an earlier operation if the rank recorded no arrival at this one
  char reason[kReasonBytes];  // of an aborted operation
};

struct alignas(kApart) RankState {
  Announcement announcement[2];                         // of even and of odd operations
  alignas(kApart) std::atomic<std::uint64_t> progress;  // steps done since the group was made
  alignas(kApart) Bell bell;
  std::atomic<std::uint64_t> finished;  // the last operation that this rank has left
  std::atomic<std::uint64_t> leading;   // the last one that it has arrived at as leader
  // Calls from device to device (on_devices.h) for which this rank's arrays may be read and
  // written, and those for which its device has done its share.
  std::atomic<std::uint64_t> arrays_there, shares_done;
  alignas(kApart) std::atomic<std::uint64_t> flag;  // flag_latency_ns(): turns so far
  alignas(kApart) Particulars particulars[2];
  std::atomic<std::uint32_t> departed;  // this rank has destroyed its group
};

// What a rank publishes while the living ranks shrink the group (shrinking.h).
struct alignas(kApart) ShrinkState {
  static constexpr std::size_t kCellBytes = 512, kMostRanks = 4096;

  std::atomic<std::uint64_t> steps;        // attempt << 32 | steps done; step 1: it takes part
  std::byte cells[2][kCellBytes];          // its data for even and odd steps
  std::uint64_t members[kMostRanks / 64];  // a bit for each rank that it has seen alive
  Failure failure;                         // why it ended the attempt
  char reason[kReportBytes];
};

struct alignas(kApart) Header {
  std::atomic<std::uint32_t> users;  // ranks that have not left (pool.h)
  NodeOptions options;
  std::size_t rooms;             // offset in the pool
  std::uint32_t slots_at_first;  // 1: the first operation may use the first bytes of slots
  // Once all ranks have announced this operation, they use the first bytes of slots and chunks, or
  // the whole of them.
  std::atomic<std::uint64_t> beginnings_from, whole_from;
  static constexpr std::uint64_t kNotYet = ~std::uint64_t{0};
  std::atomic<std::uint32_t> shrinks;  // the ShrinkStates have been used
  std::atomic<std::uint32_t> poison;   // 0: usable, 1: the reason is being written, 2: failed
  SleepersExpected sleepers_expected;
  Failure failure;
  std::uint64_t failure_id;  // FailureReport::id
  char reason[kReportBytes];
  std::atomic<std::uint64_t> shrink_decided;  // attempt << 32 | rank whose member list applies
  std::atomic<std::uint64_t> shrink_ended;    // shrinking.h: AttemptsEnded
};

// Offsets in bytes from the start of the lines: states, gathered (those of even operations first),
// short_slots. From the start of the rooms: rings; the ShrinkStates come first.
struct Layout {
  std::size_t states, gathered, gathered_bytes, short_slots, line_bytes, rings, room_bytes;

  Layout(std::size_t ranks, const NodeOptions& options)
      : states(sizeof(Header)),
        gathered(states + ranks * sizeof(RankState)),
        gathered_bytes(options.has_tree(ranks)
                           ? (ranks * Gathered::kBytesPerRank + kApart - 1) / kApart * kApart
                           : 0),
        short_slots(gathered + 2 * gathered_bytes),
        line_bytes(round_up(short_slots + ranks * 2 * kShortSlot)),
        rings(round_up(ranks * sizeof(ShrinkState))),
        room_bytes(round_up(rings + ranks * 2 * options.ring_bytes)) {}

 private:
  static std::size_t round_up(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
};
static_assert(sizeof(Header) % kApart == 0 && sizeof(RankState) % kApart == 0 &&
              kShortSlot % kApart == 0 && offsetof(Header, users) == 0);

}  // namespace gradred
