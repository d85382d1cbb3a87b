# The part of `cmake --install` that depends on the prefix, which may be given on its command
# line: the configuration, and the units with the paths of the programs.  The caller sets
# KVB_BINDIR, KVB_SYSCONFDIR and KVB_BUILD.  DESTDIR is put before every path.

get_filename_component(prefix ${CMAKE_INSTALL_PREFIX} ABSOLUTE) # units need absolute paths

# Without --config the programs read /etc/kvbridge.  Another prefix than /usr has a separate etc,
# whose path is in the units.
if(IS_ABSOLUTE "${KVB_SYSCONFDIR}")
  set(sysconfdir ${KVB_SYSCONFDIR}/kvbridge)
elseif(prefix MATCHES "^/usr(/local)?/?$")
  set(sysconfdir /${KVB_SYSCONFDIR}/kvbridge)
else()
  set(sysconfdir ${prefix}/${KVB_SYSCONFDIR}/kvbridge)
endif()
get_filename_component(bindir ${KVB_BINDIR} ABSOLUTE BASE_DIR ${prefix})

file(READ ${CMAKE_CURRENT_LIST_DIR}/systemd/sandbox.conf sandbox)
foreach(daemon kvbridge kvaggregator)
  if(EXISTS $ENV{DESTDIR}${sysconfdir}/${daemon}.cfg)
    message(STATUS "Keeping: $ENV{DESTDIR}${sysconfdir}/${daemon}.cfg")
  else()
    file(INSTALL ${CMAKE_CURRENT_LIST_DIR}/${daemon}.cfg DESTINATION ${sysconfdir})
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/systemd/${daemon}.service.in
      ${KVB_BUILD}/systemd/${daemon}.service @ONLY)
  file(INSTALL ${KVB_BUILD}/systemd/${daemon}.service
      DESTINATION ${prefix}/lib/systemd/system)
endforeach()
