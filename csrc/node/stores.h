// How ranks write what their peers are to read.
//
// Lines that a peer has read are in its cache, and to write them the ordinary way they have to come
// back from there, one by one: between far cores that takes far longer than to write past the
// caches, and peers then read from memory, of which they fetch many lines at once. Between near
// cores short data are there sooner the ordinary way. So rank 0 measures both, for each power of
// two: what it takes to write its own and to read its peers', without the waiting in between. It
// says with each allreduce through slots what all are to do from the next one on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gradred {

class FasterStores {
 public:
  static constexpr std::size_t kLeast = 2048;  // bytes: below, past the caches is never faster

  // Whether to write so many bytes past the caches.
  bool past(std::size_t bytes) const {
    return bytes >= kLeast && (past_ >> index_of(bytes) & 1) != 0;
  }
  // Of kLeast and more, on the rank that decides: whether took() wants to know of this operation,
  // and what all follow when they have announced it.
  bool measures(std::size_t bytes) const { return times_[index_of(bytes)].measures; }
  std::uint8_t decide(std::size_t bytes);
  void took(std::size_t bytes, std::uint64_t ns);
  void follow(std::uint8_t past) { past_ = past; }

 private:
  static constexpr unsigned kBetween = 128;
  struct Times {
    std::array<double, 2> ns{};  // per byte: the ordinary way, and past the caches; 0: not known
    unsigned operations = 0;
    unsigned trial = 1;           // the operation with which the next one begins
    unsigned between = kBetween;  // trials
    bool tries_past = true;       // in a trial: the other way
    bool measures = false;

    void end_trial();
  };
  static constexpr unsigned kTrial = 8;
  static constexpr std::size_t kPowers = 8;  // the last stands for all beyond
  static std::size_t index_of(std::size_t bytes);

  // A bit for each power; what was never tried follows the next shorter one.
  std::uint8_t past_ = 0;
  std::array<Times, kPowers> times_{};
};

// What a rank writes for its peers to read, in the way of the operation under way.
class PeerStores {
 public:
  FasterStores& faster() { return faster_; }
  void begin(bool past) { past_ = past; }                            // the caches
  void begin_on(std::size_t bytes) { past_ = faster_.past(bytes); }  // so many, as measured
  bool past() const { return past_; }
  void give(std::byte* target, const std::byte* source, std::size_t bytes);
  // As give() past the caches.
  void write_past(std::byte* target, const std::byte* source, std::size_t bytes);
  std::uint64_t written_past() const { return written_past_; }  // how often

 private:
  FasterStores faster_;
  bool past_ = false;
  std::uint64_t written_past_ = 0;
};

}  // namespace gradred
