#include "json_text.h"

#include <algorithm>

#include "unshard/error.h"

namespace unshard {
namespace {

using Json = nlohmann::ordered_json;
constexpr int most_levels = 100;

/// Counts levels; says stop where there are too many, before anything is built.
class LevelCheck : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool key(std::string&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    const bool too_large = error.id == 406;  // out_of_range: a number outside a double
    reason_ = (too_large ? "a number that is too large before byte " : "is no JSON: wrong near byte ") + std::to_string(position);
    return false;
  }
  [[nodiscard]] const std::string& reason() const { return reason_; }

 private:
  bool enter() {
    if (++level_ <= most_levels) return true;
    reason_ = "nested deeper than " + std::to_string(most_levels) + " levels";
    return false;
  }
  bool leave() {
    --level_;
    return true;
  }
  int level_ = 0;
  std::string reason_;
};

/// Walks a text that is known to be JSON of few levels.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::vector<JsonMember> members() {
    skip_space();
    object();
    return std::move(members_);
  }

 private:
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) ++at_;
  }

  std::string string() {
    const std::size_t begin = at_++;
    while (text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    ++at_;
    return Json::parse(text_.substr(begin, at_ - begin)).get<std::string>();
  }

  void object() {
    ++at_;
    skip_space();
    while (text_[at_] != '}') {
      JsonMember member;
      member.begin = at_;
      path_.push_back(string());
      skip_space();
      ++at_;  // the colon
      skip_space();
      member.path = path_;
      member.value_begin = at_;
      const std::size_t place = members_.size();
      members_.push_back(std::move(member));
      value();
      members_[place].value_end = at_;
      path_.pop_back();
      skip_space();
      if (text_[at_] == ',') ++at_;
      skip_space();
    }
    ++at_;
  }

  void value() {
    if (text_[at_] == '{') return object();
    if (text_[at_] == '"') {
      string();
    } else if (text_[at_] == '[') {
      skip_list();
    } else {
      while (at_ < text_.size() && std::string_view(",]} \n\r\t").find(text_[at_]) == std::string_view::npos) ++at_;
    }
  }

  void skip_list() {
    std::size_t level = 0;
    do {
      const char c = text_[at_];
      if (c == '"') {
        string();
        continue;
      }
      if (c == '[' || c == '{') ++level;
      if (c == ']' || c == '}') --level;
      ++at_;
    } while (level > 0);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<std::string> path_;
  std::vector<JsonMember> members_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& label) {
  LevelCheck check;
  if (!Json::sax_parse(text, &check)) throw Error(ErrorCode::bad_input, label + ": " + check.reason());
  return Json::parse(text);
}

std::vector<JsonMember> json_members(std::string_view text) {
  return Scanner(text).members();
}

}  // namespace unshard
