# The software bill of materials of the installed programs: CycloneDX 1.5 as JSON.
# usage: cmake -DVERSION=... -DPROGRAMS=a,b -DOUT=FILE -P sbom.cmake
#
# The components are the shared libraries that the dynamic linker of this machine loads for the
# programs, given as the Debian packages that own them; without dpkg as file names without version.
# It contains no time and no random number: the same build on the same system gives the same bytes.

cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" programs "${PROGRAMS}")
execute_process(COMMAND ldd ${programs} OUTPUT_VARIABLE loaded COMMAND_ERROR_IS_FATAL ANY)
if(loaded MATCHES "not found")
  message(FATAL_ERROR "sbom: the programs need libraries that are not installed: ${loaded}")
endif()
string(REGEX MATCHALL "=> [^ \n]+" libraries "${loaded}")
list(TRANSFORM libraries REPLACE "^=> " "")
list(REMOVE_DUPLICATES libraries)

# dpkg lists a library of Debian below /usr/lib or below /lib, which are the same folder.
set(paths)
foreach(library ${libraries})
  file(REAL_PATH ${library} real)
  string(REGEX REPLACE "^/usr/" "/" short "${real}")
  list(APPEND paths ${short} /usr${short})
endforeach()
execute_process(COMMAND dpkg-query -S ${paths} OUTPUT_VARIABLE owners ERROR_QUIET)
string(REGEX MATCHALL "[^\n]+: /[^\n]+" owners "${owners}")

# Percent-encoded, as in a package URL.
function(encode_version version out)
  string(REPLACE "%" "%25" version "${version}")
  string(REPLACE "+" "%2B" version "${version}")
  string(REPLACE ":" "%3A" version "${version}")
  set(${out} "${version}" PARENT_SCOPE)
endfunction()

set(packages)
set(components)
foreach(library ${libraries})
  file(REAL_PATH ${library} real)
  string(REGEX REPLACE "^/usr/" "/" short "${real}")
  set(package)
  foreach(owner ${owners})
    string(REGEX REPLACE "^.*: " "" path "${owner}")
    if(path STREQUAL short OR path STREQUAL "/usr${short}")
      string(REGEX REPLACE ": /.*$" "" package "${owner}")
    endif()
  endforeach()
  if(package)
    list(APPEND packages ${package})
  else()
    get_filename_component(name ${library} NAME)
    list(APPEND components "${name}|")
  endif()
endforeach()
if(packages)
  list(REMOVE_DUPLICATES packages)
  execute_process(COMMAND dpkg-query -W -f "\${Package}:\${Architecture}|\${Version}\n" ${packages}
      OUTPUT_VARIABLE versions COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" versions "${versions}")
  list(APPEND components ${versions})
endif()
list(SORT components)
list(REMOVE_DUPLICATES components)

set(rows)
set(refs)
foreach(component ${components})
  string(REGEX REPLACE "\\|.*" "" package "${component}")
  string(REGEX REPLACE ".*\\|" "" version "${component}")
  string(REGEX REPLACE ":.*" "" name "${package}")
  set(row "\"type\": \"library\", \"name\": \"${name}\"")
  set(ref "${name}")
  if(version)
    encode_version("${version}" encoded)
    string(REGEX REPLACE "^.*:" "" arch "${package}")
    set(ref "pkg:deb/debian/${name}@${encoded}?arch=${arch}")
    string(APPEND row ", \"version\": \"${version}\", \"purl\": \"${ref}\"")
  endif()
  list(APPEND rows "    { \"bom-ref\": \"${ref}\", ${row} }")
  list(APPEND refs "\"${ref}\"")
endforeach()
list(JOIN rows ",\n" rows)
list(JOIN refs ",\n      " refs)

file(WRITE ${OUT} "{
  \"bomFormat\": \"CycloneDX\",
  \"specVersion\": \"1.5\",
  \"version\": 1,
  \"metadata\": {
    \"component\": {
      \"type\": \"application\", \"bom-ref\": \"kvbridge\", \"name\": \"kvbridge\", \"version\": \"${VERSION}\"
    }
  },
  \"components\": [
${rows}
  ],
  \"dependencies\": [
    { \"ref\": \"kvbridge\", \"dependsOn\": [
      ${refs}
    ] }
  ]
}
")
