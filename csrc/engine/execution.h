// A plan in flight: one schedule on one run of elements. The one executor behind blocking,
// non-blocking, persistent, sliced, traced and simulated operations.
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
  // The schedule must outlive the execution. `memory` is where work, input and scratch lie, for
  // which the channel was opened. A schedule without reduce steps needs of the reduction the type.
  Execution(const Schedule& schedule, std::unique_ptr<Channel> channel, std::size_t count,
            const Reduction& reduction, Memory memory = {});
  ~Execution();  // abandons what is in flight, while scratch and work are still there
  Execution(const Execution&) = delete;
  Execution& operator=(const Execution&) = delete;

  // Begin on `work` (count elements), where the result will be: posts the first round's messages.
  // This rank's input is in `work` where the schedule is in place, else in `input`, which is only
  // read and stays the execution's until it has ended. Where `before` is given, neither is touched
  // before that stream is ready.
  void start(void* work, const void* input, std::uint32_t tag, const Signature& signature,
             Stream* before = nullptr);
  // Go on as far as possible without blocking; true when the operation is complete. Throws what the
  // channel throws.
  bool advance();
  // After a refusal that all ranks know of: never blocks, true when the memory is the caller's
  // again.
  bool drain();
  // Give up. False where something may still write into what the execution was given.
  bool abandon() noexcept;
  bool active() const { return active_; }

 private:
  void start_round();
  void finish_messages();
  bool memory_is_ready();
  std::byte* address(const Span& span) const;  // of the input: only to read
  std::size_t bytes(const Span& span) const;

  const Schedule& schedule_;
  std::unique_ptr<Channel> channel_;
  Partition partition_;
  const Reduction reduction_;
  const std::size_t element_;
  Allocation scratch_;
  Stream stream_;             // of the local steps
  Stream* before_ = nullptr;  // what is done there comes before the first round
  std::byte* work_ = nullptr;
  std::byte* input_ = nullptr;
  std::size_t round_ = 0;
  Round room_;                    // where the current round is made, if it is
  const Round* steps_ = nullptr;  // the current round, while its messages are in flight
  bool active_ = false;
};

}  // namespace gradred
