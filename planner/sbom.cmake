# build/PRESET/foldwise.spdx.json: a bill of materials (SPDX 2.3) of what the programs are built with, in the versions
# that this configuration found. fw_sbom(PACKAGE ...): a package that LICENCES does not have is an error.
set(LICENCES
  "Boost|BSL-1.0|https://www.boost.org"
  "CLI11|BSD-3-Clause|https://github.com/CLIUtils/CLI11"
  "Eigen3|MPL-2.0|https://eigen.tuxfamily.org"
  "SQLite3|blessing|https://www.sqlite.org"
  "TBB|Apache-2.0|https://github.com/uxlfoundation/oneTBB"
  "fmt|MIT|https://github.com/fmtlib/fmt"
  "mimalloc|MIT|https://github.com/microsoft/mimalloc"
  "nanobind|BSD-3-Clause|https://github.com/wjakob/nanobind"
  "nlohmann_json|MIT|https://github.com/nlohmann/json"
  "plotly|MIT|https://plotly.com/javascript"
  "units|BSD-3-Clause|https://github.com/LLNL/units"
  "yaml-cpp|MIT|https://github.com/jbeder/yaml-cpp")

function(fw_sbom)
  set(packages)
  set(relationships)
  foreach(name IN LISTS ARGN)
    set(row ${LICENCES})
    list(FILTER row INCLUDE REGEX "^${name}[|]")
    if(NOT row OR NOT ${name}_VERSION)
      message(FATAL_ERROR "planner/sbom.cmake: ${name} needs a row of LICENCES, and a version (found: \"${${name}_VERSION}\")")
    endif()
    string(REPLACE "|" ";" row "${row}")
    list(POP_FRONT row _ licence home)
    string(REPLACE "_" "-" id "SPDXRef-${name}")
    string(APPEND packages ",
    {\"name\": \"${name}\", \"SPDXID\": \"${id}\", \"versionInfo\": \"${${name}_VERSION}\", \"downloadLocation\": \"${home}\",
     \"filesAnalyzed\": false, \"licenseConcluded\": \"NOASSERTION\", \"licenseDeclared\": \"${licence}\", \"copyrightText\": \"NOASSERTION\"}")
    string(APPEND relationships ",
    {\"spdxElementId\": \"SPDXRef-foldwise\", \"relationshipType\": \"DEPENDS_ON\", \"relatedSpdxElement\": \"${id}\"}")
  endforeach()
  # The commit's time: the same source gives the same bytes.
  execute_process(COMMAND ${CMAKE_COMMAND} -E env TZ=UTC git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ "--format=%cd %H"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT commit)
    string(TIMESTAMP commit "%Y-%m-%dT%H:%M:%SZ ${PROJECT_VERSION}" UTC)  # SOURCE_DATE_EPOCH, where it is set.
  endif()
  string(REPLACE " " ";" commit "${commit}")
  list(POP_FRONT commit created hash)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/foldwise.spdx.json @ONLY CONTENT [[
{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "foldwise-@PROJECT_VERSION@",
  "documentNamespace": "https://spdx.org/spdxdocs/foldwise-@PROJECT_VERSION@-@hash@",
  "creationInfo": {"created": "@created@", "creators": ["Tool: CMake-@CMAKE_VERSION@"]},
  "packages": [
    {"name": "foldwise", "SPDXID": "SPDXRef-foldwise", "versionInfo": "@PROJECT_VERSION@", "downloadLocation": "NOASSERTION",
     "filesAnalyzed": false, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "2026 The Foldwise authors"}@packages@
  ],
  "relationships": [
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-foldwise"}@relationships@
  ]
}
]])
endfunction()
