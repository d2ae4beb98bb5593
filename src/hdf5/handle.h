// HDF5's identifiers as values that close themselves, and its calls checked: the only way in which this library talks to it.
#pragma once

#include <hdf5.h>

#include <mutex>
#include <string>
#include <utility>

#include "unshard/error.h"

namespace unshard {

/// Throws Error(`code`) for a negative result. Returns the result.
template <class Result>
Result checked(Result result, const std::string& subject, const char* call, ErrorCode code) {
  if (result < 0) throw Error(code, printable(subject, 4096) + ": HDF5's " + call + " failed");
  return result;
}

/// Owns an identifier of any kind.
class Handle {
 public:
  Handle() = default;
  explicit Handle(hid_t id) : id_(id) {}
  ~Handle() { close(); }
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  // NOLINTNEXTLINE(google-explicit-constructor): the C functions take what this stands for
  operator hid_t() const { return id_; }
  /// Returns what closing said; negative is a failure. For a file this is the moment when it is written.
  herr_t close() { return id_ >= 0 ? H5Idec_ref(std::exchange(id_, H5I_INVALID_HID)) : 0; }

 private:
  hid_t id_ = H5I_INVALID_HID;
};

/// One thread at a time may be in HDF5 (Debian's may be built without its own lock). HDF5 prints nothing.
class Hdf5Guard {
 public:
  Hdf5Guard() : lock_(mutex()) {
    H5dont_atexit();  // what could not be written stays open in there, and closing it at exit crashes
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex only;
    return only;
  }
  std::lock_guard<std::mutex> lock_;
};

// The parts of the one Hdf5 object.
struct Hdf5Dataset;
struct Hdf5Image;
struct Hdf5Column;

}  // namespace unshard
