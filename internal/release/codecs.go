package main

import (
	"os"
	"path/filepath"
	"strings"
)

// A codec is a library whose code goes into libcgotorch_decode.so.
type codec struct {
	name     string
	about    string // its version and licence
	patches  string // the part with Debian's patches, or ""
	target   string
	archive  string // that the target makes
	headers  []string
	licences []string
	settings []string
}

// codecs are in the order in which they are built.
var codecs = []codec{
	{"zlib", "zlib 1.2.13: zlib", "", "zlibstatic", "libz.a", []string{"zlib.h", "zconf.h"}, []string{"LICENSE"}, nil},
	{"libpng", "libpng 1.6.39: PNG Reference Library", "libpng-patches", "png_static", "libpng.a", []string{"png.h", "pngconf.h", "pnglibconf.h"}, []string{"LICENSE"},
		[]string{"-DPNG_SHARED=OFF", "-DPNG_TESTS=OFF"}},
	{"libjpeg", "libjpeg-turbo 2.1.5: IJG and BSD 3-Clause", "libjpeg-patches", "jpeg-static", "libjpeg.a", []string{"jpeglib.h", "jconfig.h", "jmorecfg.h", "jerror.h"}, []string{"LICENSE.md", "README.ijg"},
		[]string{"-DENABLE_SHARED=OFF", "-DWITH_TURBOJPEG=OFF", "-DREQUIRE_SIMD=ON"}},
}

// buildCodecs builds the codecs into the folder of the toolchain, with their licences.
func buildCodecs(p *parts, t *toolchain, work string, jobs int) error {
	for _, c := range codecs {
		source, err := c.source(p, work)
		if err != nil {
			return err
		}
		build := filepath.Join(work, c.name+"-build")
		if err := t.cmake(source, build, jobs, []string{c.target}, append(c.settings, "-DCMAKE_POSITION_INDEPENDENT_CODE=ON", "-DCMAKE_C_VISIBILITY_PRESET=hidden")...); err != nil {
			return err
		}
		for _, header := range c.headers {
			if err := copyFirst(filepath.Join(t.codecs, "include", header), filepath.Join(build, header), filepath.Join(source, header)); err != nil {
				return err
			}
		}
		if err := copyFirst(filepath.Join(t.codecs, "lib", c.archive), filepath.Join(build, c.archive), filepath.Join(build, "libpng16.a")); err != nil {
			return err
		}
		for _, licence := range c.licences {
			if err := copyFirst(filepath.Join(t.codecs, "licenses", c.name+"-"+licence), filepath.Join(source, licence)); err != nil {
				return err
			}
		}
	}
	return nil
}

// source returns a folder with the patched source.
func (c codec) source(p *parts, work string) (string, error) {
	unpacked, err := p.folder(c.name, "any")
	if err != nil {
		return "", err
	}
	source := filepath.Join(work, c.name)
	inner, err := filepath.Glob(filepath.Join(unpacked, "*"))
	if err != nil {
		return "", err
	}
	if err := run(work, "cp", "-a", inner[0], source); err != nil {
		return "", err
	}
	if c.patches == "" { // Debian's archive of zlib lacks a file for Windows that CMake wants to see
		return source, write(filepath.Join(source, "win32", "zlib1.rc"), nil, 0o666)
	}
	patches, err := p.folder(c.patches, "any")
	if err != nil {
		return "", err
	}
	patches = filepath.Join(patches, "debian", "patches")
	series, err := os.ReadFile(filepath.Join(patches, "series"))
	if err != nil {
		return "", err
	}
	for _, name := range strings.Fields(string(series)) {
		if strings.HasPrefix(name, "#") {
			continue
		}
		if err := run(source, "patch", "-p1", "-s", "-i", filepath.Join(patches, name)); err != nil {
			return "", err
		}
	}
	return source, nil
}

// copyFirst copies the first of some files that is there.
func copyFirst(to string, from ...string) error {
	var err error
	for _, path := range from {
		var text []byte
		if text, err = os.ReadFile(path); err == nil {
			return write(to, text, 0o666)
		}
	}
	return err
}
