# Writes the status page as C: cmake -DPAGE=status_page.html -DOUT=status_page.c -P status_page.cmake

# "a1b2c3..." -> base64, as a Content-Security-Policy names a hash.  32 bytes: 10 times
# 6 hex digits become 4 letters, then 4 digits and two zeros become 3 and a sign.
function(base64_of_sha256 hex out)
  set(alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/)
  set(text "")
  foreach(at RANGE 0 60 6)
    string(SUBSTRING "${hex}00" ${at} 6 digits)
    foreach(shift 18 12 6 0)
      math(EXPR letter "(0x${digits} >> ${shift}) & 63")
      string(SUBSTRING ${alphabet} ${letter} 1 letter)
      string(APPEND text ${letter})
    endforeach()
  endforeach()
  string(SUBSTRING ${text} 0 43 text)
  set(${out} "${text}=" PARENT_SCOPE)
endfunction()

# The hash of what stands between <tag> and </tag>, of which there is one.
function(hash_of_element tag out)
  string(FIND "${page}" "<${tag}>" from)
  string(FIND "${page}" "</${tag}>" to)
  string(LENGTH "<${tag}>" tag_length)
  math(EXPR from "${from} + ${tag_length}")
  math(EXPR length "${to} - ${from}")
  if(length LESS 1)
    message(FATAL_ERROR "${PAGE} has no <${tag}>")
  endif()
  string(SUBSTRING "${page}" ${from} ${length} text)
  string(SHA256 hex "${text}")
  base64_of_sha256(${hex} base64)
  set(${out} "'sha256-${base64}'" PARENT_SCOPE)
endfunction()

file(READ ${PAGE} page)
file(READ ${PAGE} bytes HEX)
file(SHA256 ${PAGE} etag)
hash_of_element(style style)
hash_of_element(script script)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")

file(WRITE ${OUT} "#include \"kvaggregator/answers/dashboard.h\"

const char kvb_status_page[] = {
${bytes}
};
const size_t kvb_status_page_bytes = sizeof kvb_status_page;

const char kvb_status_page_policy[] =
    \"default-src 'none'; script-src ${script}; style-src ${style}; connect-src 'self'; \"
    \"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \"
    \"require-trusted-types-for 'script'; trusted-types 'none'\";

const char kvb_status_page_etag[] = \"\\\"${etag}\\\"\";
")
