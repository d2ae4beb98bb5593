#include "support/torch_archive.h"

#include <isa-l.h>

namespace unshard::testing {
namespace {

std::string header_middle(const ZipFields& fields) {
  return little(fields.flags, 2) + little(fields.method, 2) + little(0, 4) + little(fields.crc, 4) + little(fields.packed_bytes, 4) +
         little(fields.size_bytes, 4) + little(fields.name.size(), 2);
}

std::string central_header(const ZipFields& fields, bool zip64) {
  ZipFields stated = fields;
  std::string extra;
  if (zip64) {
    extra = little(1, 2) + little(24, 2) + little(fields.size_bytes, 8) + little(fields.packed_bytes, 8) + little(fields.header_at, 8);
    stated.size_bytes = stated.packed_bytes = stated.header_at = 0xFFFFFFFF;
  }
  return little(0x02014B50, 4) + little(45, 2) + little(45, 2) + header_middle(stated) + little(extra.size(), 2) + little(0, 10) +
         little(stated.header_at, 4) + fields.name + extra;
}

std::string end_records(const ZipEnd& end, const ArchiveOptions& options) {
  std::string bytes;
  if (options.end64) {
    bytes += little(0x06064B50, 4) + little(44, 8) + little(45, 2) + little(45, 2) + little(0, 8) + little(end.count, 8) +
             little(end.count, 8) + little(end.directory_bytes, 8) + little(end.directory_at, 8);
    bytes += little(0x07064B50, 4) + little(0, 4) + little(end.end64_at, 8) + little(1, 4);
  }
  const bool open =
      options.zip64 || (options.end64 && (end.count > 0xFFFE || end.directory_bytes > 0xFFFFFFFE || end.directory_at > 0xFFFFFFFE));
  bytes += little(0x06054B50, 4) + little(0, 4) + little(open ? 0xFFFF : end.count, 2) + little(open ? 0xFFFF : end.count, 2) +
           little(open ? 0xFFFFFFFF : end.directory_bytes, 4) + little(open ? 0xFFFFFFFF : end.directory_at, 4) +
           little(options.comment.size(), 2) + options.comment;
  return bytes;
}

}  // namespace

std::string zip_archive(const Records& records, const ArchiveOptions& options) {
  std::string bytes, directory;
  for (const auto& [name, data] : records) {
    ZipFields fields;
    fields.name = options.folder.empty() ? name : options.folder + "/" + name;
    fields.crc = options.crc ? crc32_gzip_refl(0, reinterpret_cast<const unsigned char*>(data.data()), data.size()) : 0;
    fields.packed_bytes = fields.size_bytes = data.size();
    fields.header_at = bytes.size();
    const std::size_t padding = (64 - (bytes.size() + 30 + fields.name.size() + 4) % 64) % 64;
    const std::string extra = "FB" + little(padding, 2) + std::string(padding, 'Z');
    ZipFields local = fields;
    if (options.edit_local) options.edit_local(local);
    bytes += little(0x04034B50, 4) + little(0, 2) + header_middle(local) + little(extra.size(), 2) + local.name + extra + data;
    if (options.edit_central) options.edit_central(fields);
    directory += central_header(fields, options.zip64);
  }
  ZipEnd end{records.size(), directory.size(), bytes.size(), bytes.size() + directory.size()};
  if (options.edit_end) options.edit_end(end);
  return bytes + directory + end_records(end, options);
}

std::string torch_archive(const std::string& pickle, const Records& storages, const ArchiveOptions& options) {
  Records records{{"data.pkl", pickle}, {"byteorder", "little"}};
  records.insert(records.end(), storages.begin(), storages.end());
  records.emplace_back("version", "3\n");
  return zip_archive(records, options);
}

namespace pickled {

std::string storage(const std::string& key, std::int64_t elements, const std::string& type) {
  return tuple({text("storage"), global(type == "UntypedStorage" ? "torch.storage" : "torch", type), text(key), text("cpu"),
                number(elements)}) +
         "Q";
}

std::string ordered_dict() {
  return global("collections", "OrderedDict") + ")R";
}

std::string tensor(const std::string& storage, std::int64_t offset, const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& strides) {
  return call(global("torch._utils", "_rebuild_tensor_v2"),
              {storage, number(offset), numbers(shape), numbers(strides), no, ordered_dict()});
}

std::string subclass(const std::string& cls, const std::vector<std::int64_t>& shape, const std::string& state) {
  const std::string args = tuple({cls, global("torch", "float32"), numbers(shape), numbers({1}), number(0), none, none, no});
  return call(global("torch._tensor", "_rebuild_from_type_v2"), {global("torch._utils", "_rebuild_wrapper_subclass"), cls, args, state});
}

}  // namespace pickled
}  // namespace unshard::testing
