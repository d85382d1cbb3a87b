# The part of `cmake --install` that needs to know the prefix, which may be given as
# late as on its command line: configuration, and units that name their programs.
# From the caller: KVB_BINDIR, KVB_SYSCONFDIR, KVB_BUILD; DESTDIR stands before all.

get_filename_component(prefix ${CMAKE_INSTALL_PREFIX} ABSOLUTE) # units name no other paths

# The programs look in /etc without --config; a prefix of one's own has its
# own etc, which the units name.
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
