#include "catalog_tables.h"

#include <algorithm>
#include <map>

#include "checked_math.h"
#include "unshard/error.h"

namespace unshard {
namespace {

constexpr std::uint64_t flag_crc = 1, flag_big_endian = 2, flag_plain = 4;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::bad_input, what);
}

/// Columns by name while a table is written.
class Tables {
 public:
  void number(const std::string& column, std::uint64_t value) { numbers_[column].push_back(value); }
  void values(const std::string& column, const Shape& shape) {
    std::vector<std::uint64_t>& to = numbers_[column];
    to.insert(to.end(), shape.begin(), shape.end());
  }
  /// The bytes of all texts, and where each ends.
  void text(const std::string& column, const std::string& text) {
    std::string& all = bytes_[column + "_bytes"];
    all += text;
    numbers_[column + "_ends"].push_back(all.size());
  }
  std::vector<Hdf5Column> take() {
    std::vector<Hdf5Column> columns;
    for (auto& [name, values] : numbers_) columns.push_back({name, std::move(values), {}});
    for (auto& [name, bytes] : bytes_) columns.push_back({name, {}, std::move(bytes)});
    return columns;
  }
  /// A table without rows has its columns all the same.
  void columns(std::initializer_list<const char*> numbers, std::initializer_list<const char*> texts) {
    for (const char* name : numbers) numbers_[name];
    for (const char* name : texts) {
      numbers_[std::string(name) + "_ends"];
      bytes_[std::string(name) + "_bytes"];
    }
  }

 private:
  std::map<std::string, std::vector<std::uint64_t>> numbers_;
  std::map<std::string, std::string> bytes_;
};

/// Reads one column from its start to its end.
class NumberReader {
 public:
  NumberReader(const std::string& name, const std::vector<std::uint64_t>& numbers) : name_(name), numbers_(numbers) {}
  std::uint64_t next() {
    if (at_ == numbers_.size()) refuse("the column " + name_ + " is too short");
    return numbers_[at_++];
  }
  std::uint64_t next_up_to(std::uint64_t most) {
    const std::uint64_t number = next();
    if (number > most) refuse("the column " + name_ + " has " + std::to_string(number) + ", at most " + std::to_string(most) + " was expected");
    return number;
  }
  Shape values(std::uint64_t count) {
    Shape shape;
    for (std::uint64_t i = 0; i < count; ++i) shape.push_back(next());
    return shape;
  }
  [[nodiscard]] std::size_t rows() const { return numbers_.size(); }
  void require_end() const {
    if (at_ != numbers_.size()) refuse("the column " + name_ + " is too long");
  }

 private:
  const std::string& name_;
  const std::vector<std::uint64_t>& numbers_;
  std::size_t at_ = 0;
};

class TextReader {
 public:
  TextReader(NumberReader ends, const std::string& bytes) : ends_(ends), bytes_(bytes) {}
  std::string next() {
    const std::uint64_t end = ends_.next_up_to(bytes_.size());
    if (end < at_) refuse("texts do not follow one another");
    std::string text = bytes_.substr(static_cast<std::size_t>(at_), static_cast<std::size_t>(end - at_));
    at_ = end;
    return text;
  }
  [[nodiscard]] std::size_t rows() const { return ends_.rows(); }

 private:
  NumberReader ends_;
  const std::string& bytes_;
  std::uint64_t at_ = 0;
};

class Columns {
 public:
  explicit Columns(std::vector<Hdf5Column> columns) {
    for (Hdf5Column& column : columns) {
      std::string name = column.name;
      columns_.emplace(std::move(name), std::move(column));
    }
  }
  [[nodiscard]] NumberReader numbers(const std::string& name) const { return {find(name).name, find(name).numbers}; }
  [[nodiscard]] TextReader texts(const std::string& name) const { return {numbers(name + "_ends"), find(name + "_bytes").bytes}; }

 private:
  [[nodiscard]] const Hdf5Column& find(const std::string& name) const {
    const auto found = columns_.find(name);
    if (found == columns_.end()) refuse("there is no column " + name);
    return found->second;
  }
  std::map<std::string, Hdf5Column> columns_;
};

void read_files(const Columns& columns, CatalogContent& content) {
  TextReader paths = columns.texts("files/path");
  NumberReader sizes = columns.numbers("files/size"), times = columns.numbers("files/mtime_ns"), inodes = columns.numbers("files/inode");
  for (std::size_t i = 0; i < paths.rows(); ++i)
    content.files.push_back({paths.next(), sizes.next(), static_cast<std::int64_t>(times.next()), inodes.next()});
}

void read_tensors(const Columns& columns, CatalogContent& content) {
  TextReader names = columns.texts("tensors/name");
  NumberReader dtypes = columns.numbers("tensors/dtype"), ranks = columns.numbers("tensors/rank"), extents = columns.numbers("tensors/shape");
  for (std::size_t i = 0; i < names.rows(); ++i) {
    TensorRow row;
    row.name = names.next();
    row.dtype = static_cast<DType>(dtypes.next_up_to(static_cast<std::uint64_t>(DType::c128)));
    row.shape = extents.values(ranks.next_up_to(max_rank));
    static_cast<void>(volume(row.shape));  // throws for a shape with more elements than can be counted
    content.tensors.push_back(std::move(row));
  }
  extents.require_end();
}

/// The byte behind the last element of a chunk; none when that can't be counted.
std::optional<std::uint64_t> end_of(const Chunk& chunk, DType dtype) {
  std::optional<std::uint64_t> last = 0;
  for (std::size_t d = 0; d < chunk.box.extent.size() && last; ++d) {
    const auto step = checked_multiply(chunk.box.extent[d] - 1, chunk.strides[d]);
    last = step ? checked_add(*last, *step) : std::nullopt;
  }
  if (last) last = checked_add(*last, 1);
  if (last) last = checked_multiply(*last, info(dtype).size_bytes);
  return last ? checked_add(chunk.position, *last) : std::nullopt;
}

void check_chunk(const Chunk& chunk, const CatalogContent& content) {
  const TensorRow& row = content.tensors[chunk.tensor];
  const std::uint64_t file_bytes = content.files[chunk.file].size_bytes;
  const bool is_empty = std::any_of(chunk.box.extent.begin(), chunk.box.extent.end(), [](std::uint64_t extent) { return extent == 0; });
  if (is_empty || !inside(chunk.box, row.shape)) refuse(printable(row.name) + ": " + to_string(chunk.box) + " is not inside " + to_string(row.shape));
  const auto end = end_of(chunk, row.dtype);
  if (!end || *end > file_bytes || !range_fits(chunk.record_position, chunk.record_bytes, file_bytes))
    refuse(printable(row.name) + ": a piece lies outside its file");
}

void read_chunks(const Columns& columns, CatalogContent& content) {
  NumberReader tensors = columns.numbers("chunks/tensor"), files = columns.numbers("chunks/file"), flags = columns.numbers("chunks/flags"),
               positions = columns.numbers("chunks/position"), records = columns.numbers("chunks/record_position"),
               lengths = columns.numbers("chunks/record_size"), checksums = columns.numbers("chunks/record_crc"),
               offsets = columns.numbers("chunks/offset"), extents = columns.numbers("chunks/extent"), strides = columns.numbers("chunks/stride");
  content.records.resize(content.tensors.size());
  for (std::size_t i = 0; i < tensors.rows(); ++i) {
    Chunk chunk;
    if (content.tensors.empty() || content.files.empty()) refuse("there are pieces, but no tensors or files");
    chunk.tensor = static_cast<TensorId>(tensors.next_up_to(content.tensors.size() - 1));
    chunk.file = static_cast<FileId>(files.next_up_to(content.files.size() - 1));
    const std::uint64_t flag = flags.next_up_to(flag_crc | flag_big_endian | flag_plain);
    chunk.has_crc = (flag & flag_crc) != 0;
    chunk.big_endian = (flag & flag_big_endian) != 0;
    chunk.plain = (flag & flag_plain) != 0;
    chunk.position = positions.next();
    chunk.record_position = records.next();
    chunk.record_bytes = lengths.next();
    chunk.record_crc = static_cast<std::uint32_t>(checksums.next_up_to(UINT32_MAX));
    const std::size_t rank = content.tensors[chunk.tensor].shape.size();
    chunk.box.offset = offsets.values(rank);
    chunk.box.extent = extents.values(rank);
    chunk.strides = strides.values(rank);
    check_chunk(chunk, content);
    content.records[chunk.tensor].add(chunk);
  }
  offsets.require_end();
  extents.require_end();
  strides.require_end();
}

void read_notes(const Columns& columns, CatalogContent& content) {
  TextReader keys = columns.texts("objects/key"), kinds = columns.texts("objects/what");
  NumberReader files = columns.numbers("objects/file");
  for (std::size_t i = 0; i < keys.rows(); ++i) {
    if (content.files.empty()) refuse("there are objects, but no files");
    content.objects.push_back({static_cast<FileId>(files.next_up_to(content.files.size() - 1)), keys.next(), kinds.next()});
  }
  TextReader subjects = columns.texts("notes/subject"), texts = columns.texts("notes/text");
  for (std::size_t i = 0; i < subjects.rows(); ++i) {
    Finding note{Severity::note, subjects.next(), ""};
    note.text = texts.next();
    content.notes.push_back(std::move(note));
  }
  TextReader names = columns.texts("facts/name");
  NumberReader values = columns.numbers("facts/value");
  for (std::size_t i = 0; i < names.rows(); ++i) {
    const std::string name = names.next();
    content.facts[name] = values.next();
  }
}

void write_chunks(Tables& tables, std::span<const Chunk> chunks) {
  tables.columns({"chunks/tensor", "chunks/file", "chunks/flags", "chunks/position", "chunks/record_position", "chunks/record_size",
                  "chunks/record_crc", "chunks/offset", "chunks/extent", "chunks/stride"},
                 {});
  for (const Chunk& chunk : chunks) {
    tables.number("chunks/tensor", chunk.tensor);
    tables.number("chunks/file", chunk.file);
    tables.number("chunks/flags", (chunk.has_crc ? flag_crc : 0) | (chunk.big_endian ? flag_big_endian : 0) | (chunk.plain ? flag_plain : 0));
    tables.number("chunks/position", chunk.position);
    tables.number("chunks/record_position", chunk.record_position);
    tables.number("chunks/record_size", chunk.record_bytes);
    tables.number("chunks/record_crc", chunk.record_crc);
    tables.values("chunks/offset", chunk.box.offset);
    tables.values("chunks/extent", chunk.box.extent);
    tables.values("chunks/stride", chunk.strides);
  }
}

}  // namespace

std::vector<Hdf5Column> tables_of(const CatalogContent& content, std::span<const Chunk> chunks) {
  Tables tables;
  tables.columns({"files/size", "files/mtime_ns", "files/inode", "tensors/dtype", "tensors/rank", "tensors/shape", "objects/file", "facts/value"},
                 {"catalog/format", "files/path", "tensors/name", "objects/key", "objects/what", "notes/subject", "notes/text", "facts/name"});
  tables.text("catalog/format", content.format);
  for (const CachedFile& file : content.files) {
    tables.text("files/path", file.path);
    tables.number("files/size", file.size_bytes);
    tables.number("files/mtime_ns", static_cast<std::uint64_t>(file.mtime_ns));
    tables.number("files/inode", file.inode);
  }
  for (const TensorRow& row : content.tensors) {
    tables.text("tensors/name", row.name);
    tables.number("tensors/dtype", static_cast<std::uint64_t>(row.dtype));
    tables.number("tensors/rank", row.shape.size());
    tables.values("tensors/shape", row.shape);
  }
  write_chunks(tables, chunks);
  for (const ObjectNote& object : content.objects) {
    tables.text("objects/key", object.key);
    tables.text("objects/what", object.what);
    tables.number("objects/file", object.file);
  }
  for (const Finding& note : content.notes) {
    tables.text("notes/subject", note.subject);
    tables.text("notes/text", note.text);
  }
  for (const auto& [name, value] : content.facts) {
    tables.text("facts/name", name);
    tables.number("facts/value", value);
  }
  return tables.take();
}

CatalogContent content_of(std::vector<Hdf5Column> given) {
  const Columns columns(std::move(given));
  CatalogContent content;
  content.format = columns.texts("catalog/format").next();
  read_files(columns, content);
  read_tensors(columns, content);
  read_chunks(columns, content);
  read_notes(columns, content);
  return content;
}

}  // namespace unshard
