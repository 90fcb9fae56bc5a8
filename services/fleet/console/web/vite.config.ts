import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

/**
 * Writes a `.gz` and a `.br` beside every file that gets smaller, so that the server never compresses
 * anything while somebody waits. Puts back the ignore file by which git keeps the empty folder.
 */
function precompress(): Plugin {
  return {
    name: "roadstead-precompress",
    apply: "build",
    closeBundle() {
      const dist = join(import.meta.dirname, "dist");
      writeFileSync(join(dist, ".gitignore"), "*\n!.gitignore\n");
      for (const name of readdirSync(dist, { recursive: true, encoding: "utf8" })) {
        const file = join(dist, name);
        if (!/\.(html|js|css|svg|txt)$/.test(name) || !statSync(file).isFile()) continue;
        const plain = readFileSync(file);
        const params = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY };
        const twins = { gz: gzipSync(plain, { level: 9 }), br: brotliCompressSync(plain, { params }) };
        for (const [suffix, twin] of Object.entries(twins)) {
          if (twin.length < plain.length * 0.95) writeFileSync(`${file}.${suffix}`, twin);
        }
      }
    },
  };
}

export default defineConfig({
  plugins: [react(), precompress()],
  build: {
    target: "es2023",
    // `data:` is not in our policy, and a polyfill would be for browsers that the target excludes.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: { fileName: "licenses.txt" },
  },
  server: {
    // `npm run dev` shows the pages with hot reload over a fleet that `cargo xtask up` runs.
    proxy: { "/api": { target: process.env.ROADSTEAD_URL ?? "https://127.0.0.1:8443", secure: false } },
  },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
