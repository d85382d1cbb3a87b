# The Debian package with all programs: `cpack -G DEB` in a release build.  It has the files of
# `cmake --install` with the prefix /usr.  tests/package/run tests it.

set(KVB_MAINTAINER "kvbridge maintainers <maintainers@kvbridge.invalid>" CACHE STRING
    "The maintainer of the Debian package")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvbridge)
set(CPACK_PACKAGE_CONTACT ${KVB_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV-cache events of LLM inference engines, published to routers over NATS")
set(CPACK_PACKAGE_DESCRIPTION
"kvbridge reads the KV-cache events and load figures that inference engines
publish over ZMQ, and publishes them on NATS.  kvaggregator indexes them and
tells routers which worker already holds the longest prefix of a prompt.  kvctl
sends queries.

Both daemons are systemd services that are neither enabled nor started at the
installation: edit /etc/kvbridge/kvbridge.cfg or kvaggregator.cfg first.  They
need a nats-server on any host.")

# With DESTDIR, because only then the configuration is in /etc for the prefix /usr.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/changelog.cmake)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS nats-server)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${CMAKE_CURRENT_LIST_DIR}/conffiles
    ${CMAKE_CURRENT_LIST_DIR}/postinst
    ${CMAKE_CURRENT_LIST_DIR}/prerm
    ${CMAKE_CURRENT_LIST_DIR}/postrm)

include(CPack)
