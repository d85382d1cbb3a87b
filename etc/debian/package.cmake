# The Debian package, one for all: `cpack -G DEB` in a release build.  Its files are
# those of `cmake --install` for /usr; tests/package/run installs and removes it.

set(KVB_MAINTAINER "kvbridge maintainers <maintainers@kvbridge.invalid>" CACHE STRING
    "Who answers for the Debian package")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvbridge)
set(CPACK_PACKAGE_CONTACT ${KVB_MAINTAINER})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "KV-cache events of LLM inference engines, published to routers over NATS")
set(CPACK_PACKAGE_DESCRIPTION
"kvbridge takes the KV-cache events and load figures that inference engines
publish over ZMQ to NATS; kvaggregator follows them and tells routers which
worker already holds the longest prefix of a prompt.  kvctl asks questions, and
kvfleet simulates engines.

Both daemons come as systemd services that are neither enabled nor started:
write /etc/kvbridge/kvbridge.cfg or kvaggregator.cfg first.  They need a
nats-server, here or elsewhere.")

# Staged by DESTDIR, so that a prefix of /usr means /etc.
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
