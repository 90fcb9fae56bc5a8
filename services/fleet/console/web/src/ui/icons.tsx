/** A few line icons of our own, drawn on 16 by 16; a whole icon package would be larger than the console. */

const paths = {
  anchor: "M8 5.200V14M5.500 7h5M2.500 9.500C3 12.300 5 14 8 14s5-1.700 5.500-4.500M8 5.200a1.600 1.600 0 1 0 0-3.200 1.600 1.600 0 0 0 0 3.200z",
  plus: "M8 3v10M3 8h10",
  copy: "M5.500 5.500h7v8h-7zM3.500 10.500v-8h7",
  check: "M3 8.500l3.200 3.200L13 5",
  download: "M8 2.500v7.500M4.800 7L8 10.200 11.200 7M3 13.500h10",
  alert: "M8 2.200l6.300 11.300H1.700zM8 6.500v3.200M8 11.600v.1",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 7.300v3.700M8 5v.1",
  trash: "M3 4.500h10M6.500 4.500v-2h3v2M4.500 4.500l.6 9h5.800l.6-9",
  chevron: "M4.500 6.300L8 9.800l3.500-3.500",
  right: "M6.300 4.500L9.800 8l-3.500 3.500",
  user: "M8 8a2.600 2.600 0 1 0 0-5.200A2.600 2.600 0 0 0 8 8zM3 13.700c.5-2.400 2.400-3.700 5-3.700s4.500 1.300 5 3.700",
  logs: "M3 4h10M3 7h7M3 10h10M3 13h5",
  resize: "M4 8h8M6 5.500L3.500 8 6 10.500M10 5.500L12.500 8 10 10.500",
  close: "M4 4l8 8M12 4l-8 8",
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={paths[name]} />
    </svg>
  );
}
