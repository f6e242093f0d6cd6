// Carries out one schedule on one run of elements; one that encodes, on float32 in host memory.
// This is the only executor: blocking, nonblocking, persistent, sliced, traced and simulated
// operations all use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/signature.h"
#include "memory/memory.h"
#include "schedule/partition.h"
#include "schedule/schedule.h"
#include "transport/transport.h"

namespace gradred {

class Execution {
 public:
  // The caller keeps the schedule alive as long as the execution. `memory`: where work, input and
  // scratch lie; the channel was opened for it. Without reduce steps, only the type of `reduction`
  // is used.
  Execution(const Schedule& schedule, std::unique_ptr<Channel> channel, std::size_t count,
            const Reduction& reduction, Memory memory = {});
  ~Execution();  // abandons what is in flight while scratch and work still exist
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Begins on `work` (`count` elements), where the result will be, and posts the messages of the
  // first round. The input is in `work` if the schedule is in place, else in `input`, which is only
  // read. The caller leaves `input` alone until the execution has ended. If `before` is given, the
  // execution touches neither buffer until that stream is ready.
  void start(void* work, const void* input, std::uint32_t tag, const Signature& signature,
             Stream* before = nullptr);
  // Goes on as far as possible without blocking. Returns true when the operation is complete.
  // Throws what the channel throws.
  bool advance();
  // For an operation that has been refused, and all ranks know it. Never blocks; returns true when
  // nothing uses the caller's memory any more.
  bool drain();
  // Gives up. Returns false if something may still write into the memory that the execution was
  // given.
  bool abandon() noexcept;
  bool active() const { return active_; }

 private:
  void start_round();
  void finish_messages();
  bool memory_is_ready();
  void reduce(const Step& step);
  void copy(const Step& step);
  std::byte* address(const Span& span) const;  // in the input buffer: only for reading
  std::size_t length(const Span& span) const { return partition_.length(span.first, span.chunks); }
  std::size_t bytes(const Span& span) const;

  const Schedule& schedule_;
  std::unique_ptr<Channel> channel_;
  Partition partition_;
  const Reduction reduction_;
  const std::size_t element_;
  Allocation scratch_;
  const std::size_t coded_slot_;  // bytes
  Allocation coded_;
  Stream stream_;             // carries out the local steps
  Stream* before_ = nullptr;  // its work comes before the first round
  std::byte* work_ = nullptr;
  std::byte* input_ = nullptr;
  std::size_t round_ = 0;
  Round room_;                    // storage for the current round, if it is made on demand
  const Round* steps_ = nullptr;  // the current round, while its messages are in flight
  bool active_ = false;
};

}  // namespace gradred
