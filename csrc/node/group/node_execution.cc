#include "node/group/node_execution.h"

#include <utility>

#include "base/errors.h"
#include "memory/workspace.h"

namespace gradred {

constexpr std::size_t kAll = ~std::size_t{0};

void NodeExecution::start(const NodeCall& call) {
  call_ = call;
  on_devices_ = false;
  refusal_.reset();
  steps_.reset();
  state_ = State::kStarted;
}

void NodeExecution::start_refusal(std::string text) {
  refusal_ = std::move(text);
  steps_.reset();
  state_ = State::kStarted;
}

void NodeExecution::pass_on() {
  guarded([&] {
    ways_.led().pass_on(call_, path_);
    group_.finish();
    end();
    return true;
  });
}

bool NodeExecution::begin() {
  return guarded([&] { return state_ != State::kStarted || announce(); });
}

bool NodeExecution::advance() {
  return guarded([&] { return go_on(); });
}

template <class Body>
bool NodeExecution::guarded(Body&& body) {
  bool done = false;
  try {
    group_.guarded([&] { done = body(); });
  } catch (...) {
    end();
    throw;
  }
  return done;
}

bool NodeExecution::go_on() {
  if (state_ == State::kStarted && !announce()) return false;
  if (state_ == State::kGathers) return gather();
  if (state_ == State::kAnnounced && call_.led) {
    if (!await_leader()) return false;
  } else if (state_ == State::kAnnounced) {
    if (const auto missing = group_.missing_announcement()) return await(*missing);
    group_.await_announcements(call_.signature);  // all are there, so this only compares
    if (path_ == DataPath::kChunks) {
      on_devices_ = ways_.long_ways().all_on_devices(call_);
      if (!on_devices_) to_host();
      state_ = State::kInChunks;
    } else {
      ways_.slots().take(call_, path_);
    }
  }
  if (state_ == State::kInChunks && !in_chunks()) return false;
  if (state_ != State::kEnded) group_.finish();
  end();
  return true;
}

// If the devices cannot read each other's memory, all ranks carry out the operation in host memory.
bool NodeExecution::in_chunks() {
  if (on_devices_) {
    if (!steps_) steps_ = ways_.long_ways().on_devices(call_);
    if (!steps_->advance()) return await_steps();
    steps_.reset();
    if (call_.device->done) return true;
    on_devices_ = false;
    to_host();
  }
  if (!steps_) {
    if (!has_whole_input()) return await({}, WaitCause::kStream);
    measured_from_ns_ = ways_.long_ways().begin_measuring(call_);
    steps_ = ways_.long_ways().steps(call_);
  }
  if (!steps_->advance()) return await_steps();
  if (measured_from_ns_ != 0) ways_.long_ways().end_measuring(measured_from_ns_);
  return true;
}

// From now on the call's buffers are in host memory.
void NodeExecution::to_host() {
  if (call_.device == nullptr) return;
  call_.device = nullptr;
  call_.flow->to_host(call_.send, call_.recv);
}

// Some kinds of operations do not read their input from the first byte to the last.
bool NodeExecution::has_whole_input() {
  return call_.flow == nullptr || can_be_cut(call_.kind) || call_.flow->has_input(kAll);
}

bool NodeExecution::gather() {
  if (const auto missing = group_.missing_announcement()) return await(*missing);
  ways_.led().take_charge(call_, path_);
  state_ = State::kLeads;
  return true;
}

bool NodeExecution::await_leader() {
  const Awaited leaders = group_.announcement_of_leader();
  if (!leaders.reached()) return await(leaders);
  ways_.led().take_passed_on(call_, path_);
  return true;
}

// If this rank has refused the operation before, it waits until all ranks have announced that one.
bool NodeExecution::enter() {
  if (const auto missing = group_.missing_to_enter()) return await(*missing);
  group_.enter();
  entered_ = true;
  return true;
}

bool NodeExecution::announce() {
  if (!entered_ && !enter()) return false;
  if (refusal_) {
    group_.announce_refusal(*refusal_);
    group_.finish();
    end();
  } else if (call_.led && group_.rank() == 0) {
    path_ = ways_.path_in_steps(call_);
    ways_.place(call_, path_);
    group_.lead(call_.signature);
    state_ = State::kGathers;
  } else {
    path_ = ways_.path_in_steps(call_);
    const bool reads_now = path_ != DataPath::kChunks;
    if (reads_now) to_host();
    if (call_.flow != nullptr && reads_now && !call_.flow->has_input(kAll)) {
      return await({}, WaitCause::kStream);
    }
    ways_.announce(call_, path_);
    state_ = State::kAnnounced;
  }
  return true;
}

bool NodeExecution::await(const Awaited& awaited, WaitCause what) {
  awaited_ = awaited;
  wait_cause_ = what;
  group_.glance();
  group_.look_after_peers(awaited);
  return false;
}

void NodeExecution::end() {
  steps_.reset();
  state_ = State::kEnded;
  entered_ = false;
}

}  // namespace gradred
