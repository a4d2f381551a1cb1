// Memory that a call needs and the next one uses again.

#pragma once

#include <cstdlib>

#include "vectors.h"

namespace {

// Memory of the calling thread, which its next call uses again.
class Scratch {
 public:
  ~Scratch() { std::free(memory_); }

  // Returns at least so many bytes, or null if there is not so much memory.
  char* at_least(long bytes) {
    if (bytes > bytes_) {
      std::free(memory_);
      bytes_ = up(bytes, 4096);
      memory_ = std::aligned_alloc(64, bytes_);
      if (memory_ == nullptr) bytes_ = 0;
    }
    return static_cast<char*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  long bytes_ = 0;
};

thread_local Scratch scratch;

}  // namespace
