// The steps of an operation as a coroutine, which suspends when a peer has not come far enough. The
// caller that advances it may spin until then, sleep, or do other work.
#pragma once

#include <coroutine>
#include <cstddef>
#include <utility>

#include "base/bell.h"
#include "base/wait_times.h"
#include "node/paths/way.h"

namespace gradred {

// The return type of NodeWay's member functions that use `co_await <Awaited>` or `co_await
// Steps::LookAgain`. The coroutine frame lies in memory of the group, which runs one operation at a
// time.
class [[nodiscard]] Steps {
 public:
  // Awaits a condition that has no counter.
  struct LookAgain {
    WaitCause what;
  };
  struct promise_type {
    Awaited awaited;  // word nullptr: no counter is awaited
    WaitCause wait_cause = WaitCause::kLine;

    // Continues at once if the counter has reached its target.
    struct Stop {
      promise_type& at;
      const Awaited what;

      bool await_ready() const noexcept { return what.reached(); }
      void await_suspend(std::coroutine_handle<>) const noexcept { at.awaited = what; }
      void await_resume() const noexcept {}
    };

    template <class... Arguments>
    static void* operator new(std::size_t bytes, NodeWay& way, const Arguments&...) {
      return way.frame(bytes);
    }
    static void operator delete(void*, std::size_t) noexcept {}

    Steps get_return_object() { return Steps(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    std::suspend_always final_suspend() const noexcept { return {}; }
    Stop await_transform(const Awaited& what) noexcept { return {*this, what}; }
    // Suspends until the next advance(), since no counter is awaited.
    struct Again {
      promise_type& at;
      const LookAgain again;

      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<>) const noexcept {
        at.awaited = {};
        at.wait_cause = again.what;
      }
      void await_resume() const noexcept {}
    };
    Again await_transform(LookAgain again) noexcept { return {*this, again}; }
    void return_void() const noexcept {}
    void unhandled_exception() const { throw; }  // throws out of advance()
  };

  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Steps& operator=(Steps&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Steps() {
    if (handle_) handle_.destroy();
  }

  // Continues as far as possible. Returns true at the end.
  bool advance() {
    const Awaited& last = handle_.promise().awaited;
    if (last.word != nullptr && !last.reached()) return false;
    handle_.resume();
    return handle_.done();
  }
  const Awaited& awaited() const { return handle_.promise().awaited; }
  WaitCause wait_cause() const { return handle_.promise().wait_cause; }  // if no counter is awaited

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Steps(Handle handle) : handle_(handle) {}

  Handle handle_;
};

}  // namespace gradred
