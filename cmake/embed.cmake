# Writes OUTPUT, a C++ file that holds the text of each of FILES as one row (name without extension, text) of a table.
set(rows "")
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  string(APPEND rows "    {\"${name}\", R\"unshard_json(${text})unshard_json\"},\n")
endforeach()
file(WRITE ${OUTPUT}
"#include \"families/embedded.h\"\n\nnamespace unshard {\nnamespace {\nconstexpr EmbeddedFamily table[] = {\n${rows}    {\"\", \"\"},\n};\n}\n"
"std::span<const EmbeddedFamily> embedded_families() { return {table, std::size(table) - 1}; }\n}\n")
