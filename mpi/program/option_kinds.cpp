#include "option_kinds.h"

#include "sizes.h"

namespace unshard {

void refuse(const std::string& text) {
  throw Error(ErrorCode::usage, "usage: " + text);
}

void need_text(const std::string& option, const std::string& value) {
  if (value.empty()) refuse(option + " needs a value");
}

void need(const std::string& command, std::initializer_list<std::pair<const char*, bool>> options) {
  for (const auto& [name, given] : options) {
    if (!given) refuse(std::string(name) + " is required; see unshard " + command + " --help");
  }
}

CLI::Option* add_text(CLI::App& app, const std::string& names, std::string& to, const std::string& help) {
  return app
      .add_option_function<std::string>(
          names,
          [&to, names](const std::string& value) {
            need_text(names, value);
            to = value;
          },
          help)
      ->type_name("TEXT");
}

CLI::Option* add_folder(CLI::App& app, const std::string& names, std::string& to, const std::string& help) {
  return add_text(app, names, to, help)->type_name("DIR");
}

CLI::Option* add_list(CLI::App& app, const std::string& name, std::vector<std::string>& to, const std::string& help) {
  return app.add_option(name, to, help)
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("TEXT");
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& to, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name, [&to, name](const std::string& value) { to = parse_size(value, name); }, help)
      ->type_name("SIZE");
}

// Read as signed: CLI11 would take -1 for a large one.
CLI::Option* add_count(CLI::App& app, const std::string& name, std::function<void(std::uint64_t)> set, const std::string& help) {
  const auto check_and_set = [name, set = std::move(set)](const std::int64_t& value) {
    if (value < 1) refuse(name + " must be 1 or more");
    set(static_cast<std::uint64_t>(value));
  };
  return app.add_option_function<std::int64_t>(name, check_and_set, help)->type_name("N");
}

}  // namespace unshard
