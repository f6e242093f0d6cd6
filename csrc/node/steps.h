// The way of an operation from chunk to chunk, as a coroutine that stops where a peer has not come
// far enough. Whoever drives it may spin until then, sleep, or do something else.
#pragma once

#include <coroutine>
#include <cstddef>
#include <utility>

#include "base/bell.h"
#include "base/stood.h"
#include "node/way.h"

namespace gradred {

// What a member function of a NodeWay returns that has `co_await <Awaited>` in it, or `co_await
// Steps::LookAgain`. Its frame lies in memory of the group, which has one operation at a time.
class [[nodiscard]] Steps {
 public:
  struct LookAgain {  // to wait for: what has no word
    StoodFor what;
  };
  struct promise_type {
    Awaited awaited;  // no word: nothing yet
    StoodFor stands_for = StoodFor::kLine;

    // Goes on at once where the word has been reached.
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
    // Stops until it is advanced again: there is no word for what it waits for.
    struct Again {
      promise_type& at;
      const LookAgain again;

      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<>) const noexcept {
        at.awaited = {};
        at.stands_for = again.what;
      }
      void await_resume() const noexcept {}
    };
    Again await_transform(LookAgain again) noexcept { return {*this, again}; }
    void return_void() const noexcept {}
    void unhandled_exception() const { throw; }  // out of advance()
  };

  Steps(Steps&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Steps& operator=(Steps&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Steps() {
    if (handle_) handle_.destroy();
  }

  // Goes on as far as possible; true at the end.
  bool advance() {
    const Awaited& last = handle_.promise().awaited;
    if (last.word != nullptr && !last.reached()) return false;
    handle_.resume();
    return handle_.done();
  }
  const Awaited& awaited() const { return handle_.promise().awaited; }
  StoodFor stands_for() const { return handle_.promise().stands_for; }  // of no word

 private:
  using Handle = std::coroutine_handle<promise_type>;
  explicit Steps(Handle handle) : handle_(handle) {}

  Handle handle_;
};

}  // namespace gradred
