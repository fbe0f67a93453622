package install

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// pypi is the package index of a machine whose pip has no configuration.
const pypi = "https://pypi.org/simple"

// pipSettings returns what the user's configuration of pip says: indexes, the first one first, and
// a file of certificates. The environment comes before the files, and a later file before an
// earlier.
func pipSettings() (indexes []string, certificates string) {
	settings := map[string]string{}
	files := []string{"/etc/pip.conf", under("HOME", ".pip/pip.conf"), under("XDG_CONFIG_HOME", "pip/pip.conf"), under("VIRTUAL_ENV", "pip.conf")}
	if os.Getenv("XDG_CONFIG_HOME") == "" {
		files[2] = under("HOME", ".config/pip/pip.conf")
	}
	if named := os.Getenv("PIP_CONFIG_FILE"); named != "" {
		files = append(files, named)
		if named == os.DevNull {
			files = nil
		}
	}
	for _, file := range files {
		readPipConfig(file, settings)
	}
	for _, name := range []string{"index-url", "extra-index-url", "cert"} {
		if value, ok := os.LookupEnv("PIP_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))); ok {
			settings[name] = value
		}
	}
	indexes = strings.Fields(settings["index-url"] + " " + settings["extra-index-url"])
	if strings.TrimSpace(settings["index-url"]) == "" {
		indexes = append([]string{pypi}, indexes...)
	}
	return indexes, settings["cert"]
}

func under(variable, name string) string {
	if folder := os.Getenv(variable); folder != "" {
		return filepath.Join(folder, name)
	}
	return ""
}

// readPipConfig adds the settings of the sections global and download of a file, if it is there.
func readPipConfig(path string, settings map[string]string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	section, name := "", ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		text := strings.TrimSpace(line)
		if text == "" || text[0] == '#' || text[0] == ';' {
			continue
		}
		if text[0] == '[' {
			section, name = strings.Trim(text, "[]"), ""
			continue
		}
		if section != "global" && section != "download" {
			continue
		}
		if key, value, ok := strings.Cut(text, "="); ok && line[0] != ' ' && line[0] != '\t' {
			name = strings.ReplaceAll(strings.TrimSpace(key), "_", "-")
			settings[name] = strings.TrimSpace(value)
		} else if name != "" {
			settings[name] += " " + text
		}
	}
}

var anchor = regexp.MustCompile(`href\s*=\s*["']([^"'#]+)#sha256=([0-9a-fA-F]{64})`)

// urlOf returns the address of a wheel, as a package index tells it.
func urlOf(ctx context.Context, client *http.Client, index string, w wheel) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(index, "/")+"/"+w.name+"/", nil)
	if err != nil {
		return "", fmt.Errorf("the package index %q: %w; check pip's configuration (index-url), or give -index", index, err)
	}
	request.Header.Set("Accept", "application/vnd.pypi.simple.v1+json, text/html;q=0.5")
	response, err := client.Do(request)
	if err != nil {
		return "", plain(ctx, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", refusal(response)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return "", plain(ctx, err)
	}
	found := ""
	if strings.Contains(response.Header.Get("Content-Type"), "json") {
		found, err = inJSON(text, w)
		if err != nil {
			return "", fmt.Errorf("%s sent a page that is not one of a package index: %w", response.Request.URL.Host, err)
		}
	} else {
		for _, match := range anchor.FindAllSubmatch(text, -1) {
			if strings.EqualFold(string(match[2]), w.sha256) {
				found = string(match[1])
			}
		}
	}
	if found == "" {
		return "", fmt.Errorf("%s has %s, but not the file that wheels.lock names: %w", response.Request.URL.Host, w.name, errStatus)
	}
	return resolve(response.Request.URL, request.URL, found)
}

func inJSON(text []byte, w wheel) (string, error) {
	var page struct {
		Files []struct {
			URL    string
			Hashes map[string]string
		}
	}
	if err := json.Unmarshal(text, &page); err != nil {
		return "", err
	}
	for _, f := range page.Files {
		if strings.EqualFold(f.Hashes["sha256"], w.sha256) {
			return f.URL, nil
		}
	}
	return "", nil
}

// resolve returns the address of a link on a page. A file of the index's own host gets the user and
// password of the index.
func resolve(page, index *url.URL, link string) (string, error) {
	at, err := page.Parse(strings.ReplaceAll(link, "&amp;", "&"))
	if err != nil {
		return "", fmt.Errorf("%s names the file %q: %w", page.Host, link, err)
	}
	if at.User == nil && at.Host == index.Host {
		at.User = index.User
	}
	return at.String(), nil
}
