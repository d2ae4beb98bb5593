#include "json_events.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::size_t depth_limit = 100;

/// nlohmann's SAX interface (its parser keeps its own stack, so depth costs no recursion) turned into JsonEvents.
class Adapter {
 public:
  Adapter(const std::string& label, std::string_view what, const std::function<void(const JsonEvent&)>& handle)
      : label_(label), what_(what), handle_(handle) {}

  bool null() { return emit({}); }
  bool boolean(bool) { return emit({}); }
  bool number_integer(std::int64_t) { return emit({}); }  // only called for negative numbers
  bool number_unsigned(std::uint64_t value) { return emit({.kind = JsonEvent::Kind::number, .path = {}, .text = {}, .number = value}); }
  bool number_float(double, const std::string&) { return emit({}); }
  bool string(std::string& value) { return emit({.kind = JsonEvent::Kind::text, .path = {}, .text = value}); }
  bool binary(nlohmann::json::binary_t&) { return emit({}); }

  bool start_object(std::size_t) {
    emit({.kind = JsonEvent::Kind::object, .path = {}, .text = {}});
    enter();
    path_.emplace_back();
    return true;
  }
  bool key(std::string& name) {
    path_.back().swap(name);
    return true;
  }
  bool end_object() {
    path_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) {
    emit({.kind = JsonEvent::Kind::array, .path = {}, .text = {}});
    enter();
    ++arrays_;
    return true;
  }
  bool end_array() {
    --arrays_;
    --depth_;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
    throw Error(ErrorCode::bad_input, label_ + ": the " + std::string(what_) + " is not valid JSON (at its byte " +
                                          std::to_string(position) + "); copy the file again");
  }

 private:
  bool emit(JsonEvent event) {
    event.path = path_;
    event.arrays = arrays_;
    handle_(event);
    return true;
  }
  void enter() {
    if (++depth_ > depth_limit) {
      throw Error(ErrorCode::bad_input,
                  label_ + ": the " + std::string(what_) + " is nested more than " + std::to_string(depth_limit) + " levels deep");
    }
  }

  const std::string& label_;
  std::string_view what_;
  const std::function<void(const JsonEvent&)>& handle_;
  std::vector<std::string> path_;
  std::size_t arrays_ = 0;
  std::size_t depth_ = 0;
};

}  // namespace

void read_json(std::string_view text, const std::string& label, std::string_view what,
               const std::function<void(const JsonEvent&)>& handle) {
  // The parser takes a NUL for the end of the text and would not look at what follows.
  if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(ErrorCode::bad_input, label + ": the " + std::string(what) + " is not valid JSON (NUL at its byte " + std::to_string(nul) +
                                          "); copy the file again");
  }
  Adapter adapter(label, what, handle);
  nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
}

}  // namespace unshard
