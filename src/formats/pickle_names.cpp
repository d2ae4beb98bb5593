// Python 2's names for what Python 3 calls otherwise, which pickles of protocols 0 to 2 use (CPython Lib/_compat_pickle.py, without
// tkinter).
#include "formats/pickle_text.h"

#include <array>

namespace unshard::pickle {
namespace {

struct ModuleRow {
  std::string_view old_module, module;
};
constexpr std::array module_rows{
    ModuleRow{"__builtin__", "builtins"},
    ModuleRow{"copy_reg", "copyreg"},
    ModuleRow{"Queue", "queue"},
    ModuleRow{"SocketServer", "socketserver"},
    ModuleRow{"ConfigParser", "configparser"},
    ModuleRow{"repr", "reprlib"},
    ModuleRow{"markupbase", "_markupbase"},
    ModuleRow{"_winreg", "winreg"},
    ModuleRow{"thread", "_thread"},
    ModuleRow{"dummy_thread", "_dummy_thread"},
    ModuleRow{"dbhash", "dbm.bsd"},
    ModuleRow{"dumbdbm", "dbm.dumb"},
    ModuleRow{"dbm", "dbm.ndbm"},
    ModuleRow{"gdbm", "dbm.gnu"},
    ModuleRow{"xmlrpclib", "xmlrpc.client"},
    ModuleRow{"SimpleXMLRPCServer", "xmlrpc.server"},
    ModuleRow{"httplib", "http.client"},
    ModuleRow{"htmlentitydefs", "html.entities"},
    ModuleRow{"HTMLParser", "html.parser"},
    ModuleRow{"Cookie", "http.cookies"},
    ModuleRow{"cookielib", "http.cookiejar"},
    ModuleRow{"BaseHTTPServer", "http.server"},
    ModuleRow{"commands", "subprocess"},
    ModuleRow{"urlparse", "urllib.parse"},
    ModuleRow{"robotparser", "urllib.robotparser"},
    ModuleRow{"urllib2", "urllib.request"},
    ModuleRow{"anydbm", "dbm"},
    ModuleRow{"_abcoll", "collections.abc"},
    ModuleRow{"cPickle", "pickle"},
    ModuleRow{"_elementtree", "xml.etree.ElementTree"},
    ModuleRow{"DocXMLRPCServer", "xmlrpc.server"},
    ModuleRow{"SimpleHTTPServer", "http.server"},
    ModuleRow{"CGIHTTPServer", "http.server"},
    ModuleRow{"UserDict", "collections"},
    ModuleRow{"UserList", "collections"},
    ModuleRow{"UserString", "collections"},
    ModuleRow{"whichdb", "dbm"},
    ModuleRow{"StringIO", "io"},
    ModuleRow{"cStringIO", "io"},
    ModuleRow{"exceptions", "builtins"},
};

struct NameRow {
  std::string_view old_module, old_name, module, name;
};
constexpr std::array name_rows{
    NameRow{"__builtin__", "xrange", "builtins", "range"},
    NameRow{"__builtin__", "reduce", "functools", "reduce"},
    NameRow{"__builtin__", "intern", "sys", "intern"},
    NameRow{"__builtin__", "unichr", "builtins", "chr"},
    NameRow{"__builtin__", "unicode", "builtins", "str"},
    NameRow{"__builtin__", "long", "builtins", "int"},
    NameRow{"itertools", "izip", "builtins", "zip"},
    NameRow{"itertools", "imap", "builtins", "map"},
    NameRow{"itertools", "ifilter", "builtins", "filter"},
    NameRow{"itertools", "ifilterfalse", "itertools", "filterfalse"},
    NameRow{"itertools", "izip_longest", "itertools", "zip_longest"},
    NameRow{"UserDict", "IterableUserDict", "collections", "UserDict"},
    NameRow{"UserList", "UserList", "collections", "UserList"},
    NameRow{"UserString", "UserString", "collections", "UserString"},
    NameRow{"whichdb", "whichdb", "dbm", "whichdb"},
    NameRow{"_socket", "fromfd", "socket", "fromfd"},
    NameRow{"_multiprocessing", "Connection", "multiprocessing.connection", "Connection"},
    NameRow{"multiprocessing.process", "Process", "multiprocessing.context", "Process"},
    NameRow{"multiprocessing.forking", "Popen", "multiprocessing.popen_fork", "Popen"},
    NameRow{"urllib", "ContentTooShortError", "urllib.error", "ContentTooShortError"},
    NameRow{"urllib", "getproxies", "urllib.request", "getproxies"},
    NameRow{"urllib", "pathname2url", "urllib.request", "pathname2url"},
    NameRow{"urllib", "quote_plus", "urllib.parse", "quote_plus"},
    NameRow{"urllib", "quote", "urllib.parse", "quote"},
    NameRow{"urllib", "unquote_plus", "urllib.parse", "unquote_plus"},
    NameRow{"urllib", "unquote", "urllib.parse", "unquote"},
    NameRow{"urllib", "url2pathname", "urllib.request", "url2pathname"},
    NameRow{"urllib", "urlcleanup", "urllib.request", "urlcleanup"},
    NameRow{"urllib", "urlencode", "urllib.parse", "urlencode"},
    NameRow{"urllib", "urlopen", "urllib.request", "urlopen"},
    NameRow{"urllib", "urlretrieve", "urllib.request", "urlretrieve"},
    NameRow{"urllib2", "HTTPError", "urllib.error", "HTTPError"},
    NameRow{"urllib2", "URLError", "urllib.error", "URLError"},
    NameRow{"multiprocessing", "AuthenticationError", "multiprocessing.context", "AuthenticationError"},
    NameRow{"multiprocessing", "BufferTooShort", "multiprocessing.context", "BufferTooShort"},
    NameRow{"multiprocessing", "ProcessError", "multiprocessing.context", "ProcessError"},
    NameRow{"multiprocessing", "TimeoutError", "multiprocessing.context", "TimeoutError"},
    NameRow{"__builtin__", "basestring", "builtins", "str"},
    NameRow{"UserDict", "UserDict", "collections", "UserDict"},
    NameRow{"socket", "_socketobject", "socket", "SocketType"},
};

}  // namespace

QualifiedName python3_name(std::string_view module, std::string_view name) {
  for (const NameRow& row : name_rows) {
    if (row.old_module == module && row.old_name == name) return {row.module, row.name};
  }
  for (const ModuleRow& row : module_rows) {
    if (row.old_module == module) return {row.module, name};
  }
  return {module, name};
}

}  // namespace unshard::pickle
